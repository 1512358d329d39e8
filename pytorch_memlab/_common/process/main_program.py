"""A script, folder, archive or module, run as ``python`` would run it."""

from __future__ import annotations

import builtins
import gc
import importlib.util
import io
import os
import pkgutil
import shutil
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.machinery import BuiltinImporter, ModuleSpec, SourceFileLoader
from types import CodeType, FunctionType, ModuleType
from typing import Any, cast

from ...errors import UsageError
from ..interrupts.whole_block import whole_block
from ..text.near_files import why_not_opened


@dataclass(frozen=True)
class Program:
    """A program that has not run yet."""

    name: str
    code: CodeType
    source: str | None
    argv: tuple[str, ...]
    attributes: Mapping[str, Any]

    @whole_block
    def as_main(self) -> Iterator[ModuleType]:
        """Make the program ``__main__``, with its own ``sys.argv``, for as long as this lasts."""
        module = ModuleType("__main__")
        vars(module).update(self.attributes, __builtins__=builtins)
        if sys.version_info < (3, 14):
            module.__annotations__ = {}
        before, argv = sys.modules["__main__"], sys.argv
        sys.modules["__main__"], sys.argv = module, list(self.argv)
        try:
            yield module
        finally:
            sys.modules["__main__"], sys.argv = before, argv


def folder_of(name: str, *, is_module: bool) -> str:
    """The entry that ``python`` puts on the path for a script, a folder, an archive or a module."""
    if is_module or name == "-":
        return os.getcwd()
    absolute = os.path.abspath(name)
    return absolute if pkgutil.get_importer(absolute) else os.path.dirname(os.path.realpath(name))


def find(name: str, arguments: Sequence[str], *, is_module: bool) -> Program:
    """The program of a script or a module."""
    return _module(name, arguments) if is_module else _script(name, arguments)


def with_running_codes(program: Program) -> Program:
    """A program with the code objects of its functions as they are in this process."""
    # Where another process imported it, or sent its functions, those are others than it was
    # compiled to here.
    filename = program.code.co_filename
    running: dict[tuple[str, int], CodeType] = {}
    for function in gc.get_objects():
        if type(function) is FunctionType and function.__code__.co_filename == filename:
            for code in _codes_in(function.__code__):
                running[code.co_qualname, code.co_firstlineno] = code
    return replace(program, code=_with_codes(program.code, running))


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes_in(constant)


def _with_codes(code: CodeType, running: Mapping[tuple[str, int], CodeType]) -> CodeType:
    constants = []
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            running_code = running.get((constant.co_qualname, constant.co_firstlineno))
            constants.append(
                _with_codes(constant, running) if running_code is None else running_code
            )
        else:
            constants.append(constant)
    return code.replace(co_consts=tuple(constants))


def _script(path: str, arguments: Sequence[str]) -> Program:
    if path == "-":
        return _from_stdin(arguments)
    if not path:
        raise UsageError("the name of the script is empty: name a file, or - for standard input")
    absolute = os.path.abspath(path)
    if (finder := pkgutil.get_importer(absolute)) is not None:  # a folder or a zip archive
        spec = finder.find_spec("__main__")
        if spec is None:
            raise UsageError(f"{path} has no __main__.py: name the script in it")
        return _of_spec(spec, path, arguments)
    try:
        with io.open_code(absolute) as file:
            content = file.read()
    except OSError as error:
        if shutil.which(path):
            raise UsageError(
                f"{path} is a command: name the script, as in run train.py; a launcher goes before:"
                " torchrun -m pytorch_memlab run train.py"
            ) from None
        reason = why_not_opened(error, path, is_script=True)
        raise UsageError(f"cannot open the script {path}: {reason}") from None
    return Program(
        name=os.path.splitext(os.path.basename(path))[0],
        code=compile(content, absolute, "exec", dont_inherit=True),
        source=importlib.util.decode_source(content),
        argv=(path, *arguments),
        attributes={
            "__file__": absolute,
            "__cached__": None,
            "__loader__": SourceFileLoader("__main__", absolute),
        },
    )


def _from_stdin(arguments: Sequence[str]) -> Program:
    if sys.stdin is None:
        raise UsageError("standard input is closed: give the file of a script")
    text = sys.stdin.read()
    return Program(
        name="-",
        code=compile(text, "<stdin>", "exec", dont_inherit=True),
        source=text,
        argv=("-", *arguments),
        attributes={"__loader__": BuiltinImporter},
    )


def _module(name: str, arguments: Sequence[str]) -> Program:
    """The program in a module, or in the ``__main__`` of a package, as ``python -m`` finds it."""
    if name.endswith(".py") and os.path.isfile(name):  # to look for it would run the script
        raise UsageError(f"{name} is a file and no module: leave out -m")
    before, sys.argv = sys.argv, ["-m", *arguments]  # packages around it see that as they load
    try:
        spec = importlib.util.find_spec(name)
        if spec and spec.submodule_search_locations is not None:
            name = f"{name}.__main__"
            spec = importlib.util.find_spec(name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UsageError(f"cannot find the module {name}: {error}") from error
    finally:
        sys.argv = before
    if spec is None:
        raise UsageError(f"there is no module named {name}")
    return _of_spec(spec, spec.origin or name, arguments)


def _of_spec(spec: ModuleSpec, argv0: str, arguments: Sequence[str]) -> Program:
    name, loader = spec.name, cast("Any", spec.loader)
    code = loader.get_code(name) if hasattr(loader, "get_code") else None
    if code is None:
        raise UsageError(f"the module {name} holds no Python code to run")
    return Program(
        name=name,
        code=code,
        source=loader.get_source(name) if hasattr(loader, "get_source") else None,
        argv=(argv0, *arguments),
        attributes={
            "__file__": spec.origin,
            "__cached__": spec.cached,
            "__loader__": loader,
            "__package__": spec.parent,
            "__spec__": spec,
        },
    )


def join_other_threads(threads: Collection[threading.Thread]) -> None:
    """Wait for all other threads that Python waits for before it ends, also for later ones."""
    while waiting := [
        thread
        for thread in threading.enumerate()
        if thread not in threads and not thread.daemon and thread.ident
    ]:
        for thread in waiting:
            thread.join()


@whole_block
def first_on_path(folder: str) -> Iterator[None]:
    """Put a folder at the start of ``sys.path``, where that of this command was."""
    # Python may have been told to keep such folders out (``-P``, ``PYTHONSAFEPATH``).
    before = list(sys.path)
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = folder
    try:
        yield
    finally:
        sys.path[:] = before
