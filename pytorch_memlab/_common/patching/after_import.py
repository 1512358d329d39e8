"""Patches of modules that a program may import later."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Any


class AfterImport:
    """Calls a function with a module right after the program has imported it."""

    def __init__(self) -> None:
        self._contexts: dict[str, Callable[[ModuleType], AbstractContextManager[None]]] = {}

    def call(self, name: str, function: Callable[[Any], None]) -> None:
        """Call a function with a module: now if it is imported, else once it is."""

        @contextmanager
        def context(module: ModuleType) -> Iterator[None]:
            yield
            function(module)

        module = sys.modules.get(name)
        if module is not None:
            function(module)
        else:
            self.within(name, context)

    def within(
        self, name: str, context: Callable[[ModuleType], AbstractContextManager[None]]
    ) -> None:
        """Execute a module within a context, once the program imports it."""
        self._contexts[name] = context

    def start(self) -> None:
        """Look at imports from now on."""
        sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Look at imports no more."""
        self._contexts.clear()
        sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find a module as the other finders do; a program may ask and not import it."""
        context = self._contexts.get(name)
        if context is None:
            return None
        others = sys.meta_path[sys.meta_path.index(self) + 1 :]
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            _execute_within(spec.loader, context)
        return spec


def _execute_within(
    loader: Any, context: Callable[[ModuleType], AbstractContextManager[None]]
) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        with context(module):
            execute(module)

    loader.exec_module = exec_module
