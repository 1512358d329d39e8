"""Which functions of a program are to be profiled: all of them, or those named.

Functions of a program do not exist before it runs; their code objects do, as constants of the code
that will define them.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import pkgutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import resolve_name
from types import CodeType

from pytorch_memlab.cli.program import Program
from pytorch_memlab.errors import UsageError

TOP_LEVEL = "<module>"


@dataclass(frozen=True, slots=True)
class Definition:
    """A function as the program defines it.

    Args:
        qual_name: its ``__qualname__``.
        code: its code object.
    """

    qual_name: str
    code: CodeType


def definitions(code: CodeType) -> list[Definition]:
    r"""Every ``def`` of a program, those in classes and in other functions included.

    Args:
        code: of the program's top level.

    Returns:
        In the order of the source. Lambdas and comprehensions belong to the line they are in.

    >>> code = compile("class A:\n def f(self): pass\ndef g(): return lambda: 0", "x", "exec")
    >>> [definition.qual_name for definition in definitions(code)]
    ['A.f', 'g']
    """
    return list(_definitions(code, ""))


def all_functions(program: Program) -> list[Definition]:
    """Every function of the program; its top level when it has none."""
    return definitions(program.code) or [_top_level(program)]


def source_lines(program: Program, code: CodeType) -> list[str] | None:
    """The lines of a function of the program, or of all of it, from the code's first line on.

    Returns:
        None where the program has no source.
    """
    if program.source is None:
        return None
    lines = program.source.splitlines(keepends=True)[code.co_firstlineno - 1 :]
    block = lines if code is program.code else inspect.getblock(lines)
    return [line.rstrip("\n") for line in block]


def named_functions(program: Program, names: Iterable[str]) -> list[Definition | object]:
    """What names on the command line mean.

    Args:
        program: as ``__main__``, so that what it imports can be imported.
        names: each a function, method or class of the program (``Net.forward``, ``Net``,
            ``outer.inner`` for one in a function, ``<module>`` for the top level), of what the
            program imports, under the program's name for it, or of any module
            (``package.module:Net.forward``, which is imported now).

    Returns:
        Definitions in the program, and functions or classes of other modules.

    Raises:
        UsageError: a name that means nothing; the message lists the near ones.
    """
    found: list[Definition | object] = []
    own = definitions(program.code)
    for name in names:
        found += _own(program, own, name) or [_imported(program, own, name)]
    return found


def _definitions(code: CodeType, prefix: str) -> Iterator[Definition]:
    for constant in code.co_consts:
        if not isinstance(constant, CodeType):
            continue
        if constant.co_name.startswith("<generic parameters of"):
            yield from _definitions(constant, prefix)
        elif constant.co_name.isidentifier() and constant.co_name != "__annotate__":
            qual_name = prefix + constant.co_name
            is_function = bool(constant.co_flags & inspect.CO_NEWLOCALS)
            if is_function:
                yield Definition(qual_name, constant)
            inner = f"{qual_name}.<locals>." if is_function else f"{qual_name}."
            yield from _definitions(constant, inner)


def _top_level(program: Program) -> Definition:
    return Definition(TOP_LEVEL, program.code)


def _own(program: Program, own: Iterable[Definition], name: str) -> list[Definition]:
    """The function, or the methods of the class, that the program itself has under a name."""
    if name == TOP_LEVEL:
        return [_top_level(program)]
    names = {name} | {
        name[len(module) + 1 :]
        for module in ("__main__", program.name)
        if name.startswith((f"{module}.", f"{module}:"))
    }
    functions = [found for found in own if _plain(found.qual_name) in names]
    methods = [found for found in own if found.qual_name.rpartition(".")[0] in names]
    return functions or methods


def _plain(qual_name: str) -> str:
    return qual_name.replace(".<locals>", "")


def _imported(program: Program, own: Iterable[Definition], name: str) -> object:
    """What a name means in another module."""
    first, dot, rest = name.partition(".")
    target = _imports(program).get(first, first)
    try:
        return pkgutil.resolve_name(name if ":" in name else target + dot + rest)
    except (ImportError, AttributeError, ValueError) as error:
        known = [_plain(definition.qual_name) for definition in own]
        near = difflib.get_close_matches(name, known, n=4) or known[:4]
        reason = f" ({error})" if ":" in name else ""
        has = f"has {', '.join(near)}" if near else "has no functions"
        raise UsageError(
            f"there is no function {name}{reason}; {program.argv[0]} {has}, "
            "and another module's is written module:function"
        ) from None


def _imports(program: Program) -> dict[str, str]:
    """Names that the program's top level imports, and what they stand for."""
    names: dict[str, str] = {}
    for statement in ast.walk(ast.parse(program.source or "")):
        if isinstance(statement, ast.Import):
            names |= {alias.asname: alias.name for alias in statement.names if alias.asname}
        elif isinstance(statement, ast.ImportFrom):
            module = "." * statement.level + (statement.module or "")
            package = program.attributes.get("__package__")
            origin = resolve_name(module, package) if package else module
            names |= {
                alias.asname or alias.name: f"{origin}.{alias.name}" for alias in statement.names
            }
    return names
