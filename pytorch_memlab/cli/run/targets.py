"""Which functions of a program are to be profiled: all of them, or those named.

Functions of a program do not exist before it runs; their code objects do, as constants of the code
that will define them.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import pkgutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.util import resolve_name
from types import CodeType

from pytorch_memlab._common.main_program import Program
from pytorch_memlab._common.quoted import shortened
from pytorch_memlab.cli.run.module_globs import ModuleGlob, functions_of_module, plain
from pytorch_memlab.errors import UsageError
from pytorch_memlab.line_profiler.definitions import Definition, definitions, lines_of

TOP_LEVEL = "<module>"


def all_functions(program: Program) -> list[Definition]:
    """Every function of the program, and its top level."""
    return [*definitions(program.code), _top_level(program)]


def source_lines(program: Program, code: CodeType) -> list[str] | None:
    """The lines of a function of the program, or of all of it, from the code's first line on.

    Returns:
        None where the program has no source.
    """
    if program.source is None:
        return None
    return program.source.splitlines() if code is program.code else lines_of(code, program.source)


def lines_of_functions(program: Program) -> list[tuple[int, int]]:
    """First and last line of the body of each function: lines that the top level does not run."""
    return [
        (node.body[0].lineno, node.end_lineno)
        for node in ast.walk(ast.parse(program.source or ""))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.end_lineno is not None
        and node.body[0].lineno > node.lineno
    ]


@dataclass
class NamedFunctions:
    """What the names on the command line mean.

    Attributes:
        functions: definitions in the program, and functions or classes of other modules.
        exact: those of them that a name without wildcards means.
        globs: patterns of modules that may be imported later.
    """

    functions: list[Definition | object] = field(default_factory=list)
    exact: list[Definition | object] = field(default_factory=list)
    globs: list[ModuleGlob] = field(default_factory=list)


def named_functions(program: Program, names: Iterable[str]) -> NamedFunctions:
    """What names on the command line mean.

    Args:
        program: as ``__main__``, so that what it imports can be imported.
        names: each a function, method or class of the program (``Net.forward``, ``Net``,
            ``outer.inner`` for one in a function, ``<module>`` for the top level, ``forward`` for
            the methods of this name), of what the program imports, under the program's name for
            it, or of any module (``package.module:Net.forward``, which is imported now). With
            wildcards (``Net.*``, ``package.*:*.forward``) every function that matches.

    Returns:
        The functions, by how they were named.

    Raises:
        UsageError: a name that means nothing; the message lists the near ones.
    """
    found = NamedFunctions()
    own = definitions(program.code)
    for name in names:
        if not name.strip():
            raise UsageError("-f names no function: give one such as train or Net.forward")
        if _is_pattern(name):
            _add_matching(found, program, own, name)
            continue
        functions = _own(program, own, name)
        if not functions and name not in _imports(program):
            functions = [one for one in own if plain(one.qual_name).endswith(f".{name}")]
        exact: list[Definition | object] = [*functions] or [_imported(program, own, name)]
        found.exact += exact
        found.functions += exact
    return found


def _is_pattern(name: str) -> bool:
    return any(wildcard in name for wildcard in "*?[")


def _add_matching(
    found: NamedFunctions, program: Program, own: list[Definition], name: str
) -> None:
    """Find the functions that a name with wildcards means."""
    modules, colon, functions = name.rpartition(":")
    glob = ModuleGlob(name, modules or "__main__", functions)
    for_own = [
        one
        for one in own
        if any(glob.matches(module, plain(one.qual_name)) for module in ("__main__", program.name))
    ]
    found.functions += for_own
    glob.has_matched = bool(for_own)
    if _is_pattern(modules):
        found.globs.append(glob)
    elif colon and not for_own:
        try:
            module = importlib.import_module(modules)
        except ImportError as error:
            raise UsageError(f"cannot import {modules}, which -f {name} names: {error}") from None
        matched = functions_of_module(module, functions)
        if not matched:
            raise UsageError(f"no function of {modules} matches {shortened(functions)}")
        found.functions += [one.function for one in matched]
    elif not for_own:
        raise UsageError(f"no function matches {shortened(name)}; {_listed(program, own, name)}")


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
    functions = [found for found in own if plain(found.qual_name) in names]
    methods = [found for found in own if found.qual_name.rpartition(".")[0] in names]
    return functions or methods


def _imported(program: Program, own: Iterable[Definition], name: str) -> object:
    """What a name means in another module."""
    first, dot, rest = name.partition(".")
    target = _imports(program).get(first, first)
    try:
        return pkgutil.resolve_name(name if ":" in name else target + dot + rest)
    except (ImportError, AttributeError, ValueError) as error:
        reason = f" ({shortened(str(error))})" if ":" in name else ""
        raise UsageError(
            f"there is no function {shortened(name)}{reason}; {_listed(program, own, name)}."
            " Functions of other modules are written module:function"
        ) from None


def _listed(program: Program, own: Iterable[Definition], name: str) -> str:
    """The functions that the user may have meant."""
    known = [plain(definition.qual_name) for definition in own]
    near = difflib.get_close_matches(name, known, n=4) or known[:4]
    return f"{program.argv[0]} has {', '.join(near) or 'no functions'}"


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
