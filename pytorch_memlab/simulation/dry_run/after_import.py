"""Patches of modules that a program may import later."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


class AfterImport:
    """Calls a function with a module right after the program has imported it."""

    def __init__(self) -> None:
        self._waiting: dict[str, Callable[[ModuleType], None]] = {}

    def call(self, name: str, function: Callable[[Any], None]) -> None:
        """Call a function with a module: now if it is imported, else once it is.

        Args:
            name: of the module.
            function: takes the module.
        """
        module = sys.modules.get(name)
        if module is not None:
            function(module)
        else:
            self._waiting[name] = function

    def start(self) -> None:
        """Look at imports from now on."""
        sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Look at imports no more."""
        self._waiting.clear()
        sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """What an import of a module asks: where is it? The others answer."""
        function = self._waiting.pop(name, None)
        if function is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            function(module)

        loader.exec_module = exec_module
        return spec
