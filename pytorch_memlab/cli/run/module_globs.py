"""Functions of modules that a pattern names, found while the program imports them.

Note [Modules as they are imported]

``transformers.*:*.forward`` names functions of modules that do not exist before the program runs,
and importing all that match beforehand would change what the program does. The import system asks
a loader for the code of each module, right before it executes it. The code objects of the module's
functions are constants in there: they are profiled from the first call on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib.machinery import SourceFileLoader
from types import CodeType, FunctionType, ModuleType
from typing import Any

from pytorch_memlab._common.patches import Patches
from pytorch_memlab.errors import NotAFunctionError
from pytorch_memlab.line_profiler.line_profiler import LineProfiler
from pytorch_memlab.line_profiler.registration import resolve
from pytorch_memlab.line_profiler.source_functions import definitions, lines_of, typed_name


@dataclass
class ModuleGlob:
    """A pattern of functions in modules: ``modules:functions``."""

    text: str
    modules: str
    functions: str
    has_matched: bool = field(default=False, init=False)
    """True once a function was found."""

    def matches(self, module: str, function: str) -> bool:
        """True if a function is meant, under its module and its name as people type it."""
        return fnmatchcase(module, self.modules) and fnmatchcase(function, self.functions)


def functions_of_module(module: object, pattern: str) -> list[FunctionType]:
    """The functions of a module that is imported."""
    found: dict[int, FunctionType] = {}
    # Of a class or function only: a module such as torch.classes answers any attribute's name.
    names = vars(module) if isinstance(module, ModuleType) else {}
    for member in list(names.values()):
        if isinstance(member, (type, FunctionType)) and member.__module__ == names["__name__"]:
            with suppress(NotAFunctionError):
                found.update((id(one.__code__), one) for one in resolve(member))
    return [one for one in found.values() if fnmatchcase(typed_name(one.__qualname__), pattern)]


class ImportedFunctions:
    """Adds the functions that patterns mean to a profiler, now and as modules are imported."""

    def __init__(self, globs: list[ModuleGlob], profiler: LineProfiler) -> None:
        self._globs = globs
        self._profiler = profiler

    def add_imported(self) -> None:
        """Add functions of modules that are imported already."""
        for name, module in list(sys.modules.items()):
            for glob in self._globs:
                if fnmatchcase(name, glob.modules):
                    for function in functions_of_module(module, glob.functions):
                        self._profiler.add_function(function)
                        glob.has_matched = True

    @contextmanager
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
            if not fnmatchcase(module, glob.modules):
                continue
            for found in definitions(code):
                if glob.matches(module, typed_name(found.qual_name)):
                    source = source or loader.get_source(module) or ""
                    lines = lines_of(found.code, source)
                    self._profiler.add_code(found.code, found.qual_name, lines)
                    glob.has_matched = True
