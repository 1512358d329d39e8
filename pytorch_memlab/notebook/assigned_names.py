"""The names that a cell assigns, from its source, and the one that the current call gets."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from types import FrameType

from .._common.frames.call_results import instructions_after_call
from .mlrun_options import split_statement

_MAGIC_OF_CODE = re.compile(r"%%(?:time|timeit|capture|mlrun|prun)\b[^\n]*\n(.*)", re.DOTALL)
"""Cell magics whose body is Python that runs in the cell's own namespace."""

_MAGIC_OF_STATEMENT = re.compile(r"^([ \t]*)%(time|mlrun)\b[ \t]*(.*)$", re.MULTILINE)
"""Line magics before a statement that runs in the cell's own namespace."""

_OWN_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)

_STORES = frozenset({"STORE_NAME", "STORE_GLOBAL", "STORE_FAST"})
_ON_THE_WAY = frozenset(
    {
        "CALL", "CALL_FUNCTION", "CALL_FUNCTION_KW", "CALL_FUNCTION_EX", "CALL_KW", "PRECALL",
        "KW_NAMES", "COPY", "DUP_TOP", "BEFORE_WITH", "SETUP_WITH", "SWAP", "LOAD_SPECIAL",
    }
)  # fmt: skip
"""Instructions that may stand between a call and the assignment of its result."""


def body_of(source: str) -> str:
    r"""A cell's Python, without a cell magic around it, and without %time and %mlrun before it.

    >>> body_of("%%time\n%%capture out\nx = 1\n%mlrun -f g y = f(g)")
    'x = 1\ny = f(g)'
    """
    # Its lines are counted from the body's first, as IPython counts them when it runs.
    magic = _MAGIC_OF_CODE.match(source)
    if magic is not None:
        return body_of(magic[1])
    return _MAGIC_OF_STATEMENT.sub(_statement_of, source)


def _statement_of(magic: re.Match[str]) -> str:
    indent, name, rest = magic.groups()
    if name == "mlrun":
        _, rest = split_statement(rest)
    return f"{indent}{rest or 'pass'}"


def assigned_names(source: str, after_line: int = 0) -> set[str]:
    r"""Names that a piece of Python assigns at its top level.

    >>> sorted(assigned_names("x = y = 1\nfor i in range(3): a[i] = 2\ndef f():\n z = 1"))
    ['f', 'i', 'x', 'y']
    """
    # Assignments of all kinds count, ``for``, ``with``, ``except``, ``import``, ``def``, ``class``,
    # ``match`` and ``:=`` included, also with the value that the name had; what functions change
    # does not. Only names assigned after a line are given; none for what is no Python.
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return set()
    own = (node for node in _own_nodes(tree) if getattr(node, "lineno", 0) > after_line)
    return {name for name in map(_name_bound_by, own) if name is not None}


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below one whose names are its own, not those of functions and comprehensions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.AnnAssign) and child.value is None:
            continue
        if isinstance(child, ast.comprehension):
            for part in (child.iter, *child.ifs):
                yield part
                yield from _own_nodes(part)
            continue
        yield child
        if not isinstance(child, _OWN_SCOPES):
            yield from _own_nodes(child)


def _name_bound_by(node: ast.AST) -> str | None:
    match node:
        case ast.alias(name=name, asname=alias):
            return None if name == "*" else alias or name.partition(".")[0]
        case (
            ast.Name(id=name, ctx=ast.Store())
            | ast.FunctionDef(name=name)
            | ast.AsyncFunctionDef(name=name)
            | ast.ClassDef(name=name)
            | ast.ExceptHandler(name=str(name))
            | ast.MatchAs(name=str(name))
            | ast.MatchStar(name=str(name))
            | ast.MatchMapping(rest=str(name))
        ):
            return name
    return None


def assignment_target(frame: FrameType) -> str | None:
    """The first name that a frame will assign the result of its current call to, also by ``with``.

    >>> import sys
    >>> def call():
    ...     return assignment_target(sys._getframe(1))
    >>> def use():
    ...     result = call()
    ...     return result
    >>> use()
    'result'
    >>> call() is None
    True
    """
    for instruction in instructions_after_call(frame):
        if instruction.opname in _STORES:
            return str(instruction.argval)
        if instruction.opname == "STORE_FAST_STORE_FAST":  # from Python 3.13 on
            return str(instruction.argval[0])
        if instruction.opname not in _ON_THE_WAY:
            return None
    return None
