"""The functions of a program, and of modules that it imports, that ``run`` profiles.

See Note [Names of functions that do not exist yet].

Note [Modules as they are imported]
``transformers.*:*.forward`` names functions of modules that do not exist before the program runs,
and importing all that match beforehand would change what the program does. The import system asks
a loader for the code of each module, right before it executes it. The code objects of the module's
functions are constants in there: they are profiled from the first call on.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from importlib.machinery import SourceFileLoader
from importlib.util import resolve_name
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ..._common.interrupts.whole_block import whole_block
from ..._common.patching.patches import Patches
from ..._common.process.main_program import Program
from ..._common.process.uncaught_errors import first_line
from ..._common.text.quoted import shortened
from ...errors import NotAFunctionError, UsageError
from ...line_profiler.function_source import FunctionSource, function_source
from ...line_profiler.line_profiler import LineProfiler
from ...line_profiler.registration import resolve
from ...line_profiler.source_functions import (
    Definition,
    SourceFunctions,
    definitions,
    lines_of,
    nearest,
    typed_name,
)
from ..notices import tell

_MAIN = "__main__"
_TOP_LEVEL = "<module>"

_MANY = 1000
"""Functions that a run tells of when a pattern means so many."""


def functions_of(program: Program) -> SourceFunctions:
    """The functions that a program will define."""
    return SourceFunctions(program.code, program.source, _TOP_LEVEL, (_MAIN, program.name))


@dataclass
class ModuleGlob:
    """A pattern of functions in modules: ``modules:functions``."""

    text: str
    modules: str
    functions: str
    has_matched: bool = field(default=False, init=False)
    """True once a function was found."""

    def means_module(self, module: str) -> bool:
        """True if functions of a module are meant; of this package only if it is named."""
        own = __name__.partition(".")[0]
        if module.partition(".")[0] == own and not self.modules.startswith(own):
            return False
        return fnmatchcase(module, self.modules)

    def matches(self, module: str, function: str) -> bool:
        """True if a function is meant, under its module and its name as people type it."""
        return fnmatchcase(module, self.modules) and fnmatchcase(function, self.functions)


def functions_of_module(module: object, pattern: str) -> list[FunctionType]:
    functions: dict[int, FunctionType] = {}
    # Of a class or function only: a module such as torch.classes answers any attribute's name.
    names = vars(module) if isinstance(module, ModuleType) else {}
    for member in list(names.values()):
        if (
            issubclass(type(member), (type, FunctionType))
            and member.__module__ == names["__name__"]
        ):
            with suppress(NotAFunctionError):
                functions.update((id(function.__code__), function) for function in resolve(member))
    return [
        function
        for function in functions.values()
        if fnmatchcase(typed_name(function.__qualname__), pattern)
    ]


@dataclass
class NamedFunctions:
    """The meaning of the names on the command line."""

    # definitions in the program, and functions or classes of other modules
    functions: list[Definition | object] = field(default_factory=list)
    # those of them that a name without wildcards means
    exact: list[Definition | object] = field(default_factory=list)
    # patterns of modules that may be imported later
    globs: list[ModuleGlob] = field(default_factory=list)


def named_functions(
    program: Program, source: SourceFunctions, names: Iterable[str]
) -> NamedFunctions:
    """The functions that names on the command line mean."""
    # Each is a function, method or class of the program (``Net.forward``, ``Net``, ``outer.inner``
    # for one in a function, ``<module>`` for the top level, ``forward`` for the methods of this
    # name), of what the program imports, under its name for it, or of any module
    # (``package.module:Net.forward``, which is imported now). With wildcards (``Net.*``,
    # ``package.*:*.forward``) it is every function that matches.
    targets = NamedFunctions()
    for name in names:
        if not name.strip():
            raise UsageError("-f names no function: give one such as train or Net.forward")
        if _is_pattern(name):
            _add_matching(targets, program, source, name)
            continue
        functions = [source.top_level] if name == _TOP_LEVEL else source.named(name)
        if not functions and name not in _imports(program):
            functions = source.methods_named(name)
        exact: list[Definition | object] = [*functions] or [_imported(program, source, name)]
        targets.exact += exact
        targets.functions += exact
    return targets


def _is_pattern(name: str) -> bool:
    return any(wildcard in name for wildcard in "*?[")


def _add_matching(
    targets: NamedFunctions, program: Program, source: SourceFunctions, name: str
) -> None:
    """Find the functions that a name with wildcards means."""
    modules, colon, functions = name.rpartition(":")
    glob = ModuleGlob(name, modules or _MAIN, functions)
    for_own = [
        definition
        for definition in source.defined
        if any(
            glob.matches(module, typed_name(definition.qual_name))
            for module in (_MAIN, program.name)
        )
    ]
    targets.functions += for_own
    glob.has_matched = bool(for_own)
    if _is_pattern(modules):
        targets.globs.append(glob)
    elif colon and not for_own:
        try:
            module = importlib.import_module(modules)
        except (Exception, SystemExit) as error:
            raise _cannot_import(modules, name, error) from None
        matched = functions_of_module(module, functions)
        if not matched:
            raise UsageError(f"no function of {modules} matches {shortened(functions)}")
        targets.functions += matched
    elif not for_own:
        raise UsageError(f"no function matches {shortened(name)}; {_listed(program, source, name)}")


def _imported(program: Program, source: SourceFunctions, name: str) -> object:
    """The function or class of another module."""
    first, dot, rest = name.partition(".")
    target = _imports(program).get(first, first)
    try:
        return pkgutil.resolve_name(name if ":" in name else target + dot + rest)
    except (Exception, SystemExit) as error:
        modules, colon, functions = name.rpartition(":")
        if _is_of_module(error):
            raise _cannot_import(modules or target, name, error) from None
        reason = f" ({_reason(error, modules, functions)})" if colon else ""
        raise UsageError(
            f"there is no function {shortened(name)}{reason}; {_listed(program, source, name)}."
            " Functions of other modules are written module:function"
        ) from None


def _is_of_module(error: BaseException) -> bool:
    """True if the code of a module raised an error as it was imported."""
    # That of a name which means nothing comes from Python's own importing.
    *_, (frame, _line) = traceback.walk_tb(error.__traceback__)
    file = frame.f_code.co_filename
    is_of_name = file == pkgutil.__file__ or file.startswith("<frozen importlib")
    return not (is_of_name and isinstance(error, ImportError | AttributeError | ValueError))


def _cannot_import(modules: str, name: str, error: BaseException) -> UsageError:
    if isinstance(error, ImportError):
        reason = _reason(error, modules, name.rpartition(":")[2])
    else:
        reason = f"{shortened(first_line(error))}; python -c 'import {modules}' shows where"
    return UsageError(f"cannot import {modules}, which -f {name} names: {reason}")


def _reason(error: BaseException, modules: str, functions: str) -> str:
    """Why a module or function was not found, and how to name one that the program makes known."""
    later = f"; '{modules}*:{functions}' waits until the program imports it"
    return shortened(str(error)) + later * isinstance(error, ModuleNotFoundError)


def _listed(program: Program, source: SourceFunctions, name: str) -> str:
    """The functions that the user may have meant."""
    return f"{program.argv[0]} has {', '.join(nearest(name, source.names)) or 'no functions'}"


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


class ImportedFunctions:
    """Adds the functions that patterns mean to a profiler, now and as modules are imported."""

    def __init__(self, globs: list[ModuleGlob], profiler: LineProfiler) -> None:
        self._globs = globs
        self._profiler = profiler

    def add_imported(self) -> None:
        """Add the functions of modules that are imported already; say so if they are many."""
        watched, modules = 0, set()
        for name, module in list(sys.modules.items()):
            for glob in self._globs:
                if glob.means_module(name):
                    unread = [
                        (code, qual_name, partial(function_source, code, qual_name))
                        for function in functions_of_module(module, glob.functions)
                        for code, qual_name in [(function.__code__, function.__qualname__)]
                    ]
                    self._profiler.add_unread(unread)
                    if unread:
                        glob.has_matched = True
                        watched += len(unread)
                        modules.add(name)
        if watched >= _MANY:
            tell(
                f"-f watches {watched:,} functions of {len(modules):,} modules, and those of"
                " modules that the program imports: a narrower pattern takes less time"
            )

    @whole_block
    def watching_imports(self) -> Iterator[None]:
        """Add functions of each module that is imported, before its code runs."""
        inherited: Callable[..., CodeType | None] = SourceFileLoader.get_code

        def get_code(loader: Any, name: str) -> CodeType | None:
            code = inherited(loader, name)
            if code is not None:
                self._add_defined(loader, name, code)
            return code

        with Patches() as patches:
            patches.set(SourceFileLoader, "get_code", get_code)
            yield

    def _add_defined(self, loader: SourceFileLoader, module: str, code: CodeType) -> None:
        source: str | None = None
        for glob in self._globs:
            if not glob.means_module(module):
                continue
            unread = [
                definition
                for definition in definitions(code)
                if fnmatchcase(typed_name(definition.qual_name), glob.functions)
            ]
            if unread:
                source = source or loader.get_source(module) or ""
                self._profiler.add_unread(
                    (
                        definition.code,
                        definition.qual_name,
                        partial(_source_in, source, definition.code),
                    )
                    for definition in unread
                )
                glob.has_matched = True


def _source_in(source: str, code: CodeType) -> FunctionSource:
    return FunctionSource(code.co_firstlineno, tuple(lines_of(code, source)))
