"""The names that a cell assigns, from its source, and the one that the current call gets."""

from __future__ import annotations

import ast
import re
import symtable
from typing import TYPE_CHECKING

from .._common.call_results import instructions_after_call
from .mlrun_options import split_statement

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

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

    Its lines are counted from the body's first, as IPython counts them when it runs.

    >>> body_of("%%time\n%%capture out\nx = 1\n%mlrun -f g y = f(g)")
    'x = 1\ny = f(g)'
    """
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

    Assignments of all kinds count, ``for``, ``with``, ``except``, ``import``, ``def``, ``class``,
    ``match`` and ``:=`` included, also with the value that the name had; what functions change
    does not. Only names assigned after a line are given; none for what is no Python.

    >>> sorted(assigned_names("x = y = 1\nfor i in range(3): a[i] = 2\ndef f():\n z = 1"))
    ['f', 'i', 'x', 'y']
    """
    try:
        tree = ast.parse(source)
        table = symtable.symtable(source, "<cell>", "exec")
    except (SyntaxError, ValueError):
        return set()
    symbols = table.get_symbols()
    names = {one.get_name() for one in symbols if one.is_assigned() or one.is_imported()}
    return (names | set(_walrus_names(tree))) & _bound_after(tree, after_line)


def _walrus_names(node: ast.AST) -> Iterator[str]:
    """Names that ``:=`` assigns outside functions; symbol tables lack those of comprehensions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.NamedExpr):
            yield child.target.id
        if not isinstance(child, _OWN_SCOPES):
            yield from _walrus_names(child)


def _bound_after(tree: ast.Module, line: int) -> set[str]:
    """Names that something binds below a line, at whatever level."""
    bound: set[str] = set()
    only_annotated = {
        id(node.target)
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and node.value is None
    }
    for node in ast.walk(tree):
        if getattr(node, "lineno", 0) <= line or id(node) in only_annotated:
            continue
        match node:
            case ast.alias(name=name, asname=alias):
                bound.add(alias or name.partition(".")[0])
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
                bound.add(name)
    return bound


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
        if instruction.opname not in _ON_THE_WAY:
            return None
    return None
