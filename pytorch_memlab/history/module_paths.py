"""The ``nn.Module`` that runs in a thread, as a path from the outermost module that was called."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, Final

import torch

from .._common.patching.patches import Patches

Call = Callable[..., Any]


_HELD: Final = ("_parameters", "_buffers", "_modules")
"""Attributes with what a module holds; those of an activation function or a loss are empty."""


class _Calls:
    """The modules that one thread runs."""

    __slots__ = ("number", "running")

    def __init__(self) -> None:
        self.running: list[tuple[torch.nn.Module, str]] = []
        self.number = 0


class _Thread(threading.local):
    """The calls of each thread, which an event looks up once."""

    def __init__(self) -> None:
        self.calls = _Calls()


class ModulePaths:
    """Follows calls of modules between ``begin`` and ``end``, in all threads."""

    # ``nn.Module.__call__`` is replaced. Global hooks would miss what ends with Ctrl-C, and what
    # the hooks of the module itself do.

    def __init__(self, on_new: Callable[[torch.nn.Module], object] = lambda _module: None) -> None:
        self.thread = _Thread()
        self._on_new = on_new
        self._names: dict[int, tuple[weakref.ref[torch.nn.Module], str]] = {}
        self._numbers = count(1)
        self._replacement: Call | None = None
        self._has_new = True  # whether a module may have a part that has no name yet
        self._patches = Patches()

    def begin(self) -> None:
        self._has_new = True
        self._hook = torch.nn.modules.module.register_module_module_registration_hook(
            _registration_hook(self._is_registered)
        )
        original: Any = torch.nn.Module.__call__
        thread, numbers, path_of, paths = self.thread, self._numbers, self._path_of, self

        # torch.profiler takes the variable called self, of whatever __call__ is, for the module.
        @functools.wraps(original)
        def call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if paths._replacement is not call:
                return original(self, *args, **kwargs)
            calls = thread.calls
            running = calls.running
            depth = len(running)
            try:
                running.append((self, path_of(self, running)))
                if not depth:
                    calls.number = next(numbers)
                return original(self, *args, **kwargs)
            finally:
                del running[depth:]
                if not depth:
                    calls.number = 0

        self._replacement = call
        self._patches.set(torch.nn.Module, "__call__", call)

    def end(self) -> None:
        """Follow no more; a replacement that the program made since then stays."""
        self._replacement = None
        self._hook.remove()
        self._patches.undo(keeps_later=True)

    def _path_of(self, module: torch.nn.Module, running: list[tuple[torch.nn.Module, str]]) -> str:
        entry = self._names.get(id(module))
        if entry is not None and entry[0]() is module:
            return entry[1]
        if not running:
            self._name(module, type(module).__name__, replace=True)
            self._on_new(module)
        else:
            if self._has_new:  # those that a program makes at every call are no news
                self._has_new = False
                self._name(*running[0], replace=False)
                self._on_new(running[0][0])
            if id(module) not in self._names:
                self._name(module, f"{running[-1][1]}.{type(module).__name__}", replace=False)
                if any(map(vars(module).get, _HELD)):
                    self._on_new(module)
        return self._names[id(module)][1]

    def _name(self, outermost: torch.nn.Module, path: str, *, replace: bool) -> None:
        """Name a module and those in it."""
        for name, module in _modules_in(outermost):
            if replace or id(module) not in self._names:
                key = id(module)
                reference = weakref.ref(module, partial(self._forget, key))
                self._names[key] = (reference, f"{path}.{name}" if name else path)

    def _is_registered(self, outer: torch.nn.Module) -> None:
        if id(outer) in self._names:
            self._has_new = True

    def _forget(self, key: int, _dead: weakref.ref[torch.nn.Module]) -> None:
        self._names.pop(key, None)


def _registration_hook(registered: Callable[[torch.nn.Module], object]) -> Call:
    """A hook of PyTorch that the compiler traces as nothing."""
    # A program that slices a ``ModuleList`` in compiled code makes a module there. The hook has the
    # file of PyTorch's own modules: files of this package are not traced under simulation.

    def is_registered(outer: torch.nn.Module, _name: str, _part: object) -> None:
        if not torch.compiler.is_compiling():
            registered(outer)

    code = is_registered.__code__
    is_registered.__code__ = code.replace(co_filename=torch.nn.modules.module.__file__)
    return is_registered


def _modules_in(outermost: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    try:
        return list(outermost.named_modules())
    except Exception:  # a method of the program's, or a module that is not made yet
        return [("", outermost)]
