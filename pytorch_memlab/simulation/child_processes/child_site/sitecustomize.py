"""Python runs this when a process starts that a simulated program started.

It imports nothing of torch or of this package before the process itself imports torch, and then
runs the ``sitecustomize`` that the process would have run without it.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import sys
import threading
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_VARIABLE = "PYTORCH_MEMLAB_SIMULATE"
_PACKAGE = "pytorch_memlab"
_FOLDER = os.path.dirname(os.path.abspath(__file__))


class _AfterTorch:
    """Finds torch where it is, and begins to simulate as soon as it is imported.

    This package imports torch too, from modules that are not complete then; so torch comes right
    after the package itself.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._is_asking = False
        self._simulation: Any = None
        self._afterwards = {"torch": self.begin, _PACKAGE: self._import_torch}
        atexit.register(self._end)

    def find_spec(self, name: str, *_where: Any) -> ModuleSpec | None:
        """The spec that other finders have of the two modules; None for all other modules."""
        if name not in self._afterwards or self._is_asking:
            return None
        self._is_asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_asking = False
        if spec is not None and spec.loader is not None:
            self._follow(spec.loader, name)
        return spec

    def _follow(self, loader: Any, name: str) -> None:
        execute = loader.exec_module

        def execute_and_go_on(module: ModuleType) -> None:
            execute(module)
            self._afterwards.pop(name, _do_nothing)()

        loader.exec_module = execute_and_go_on

    def _import_torch(self) -> None:
        with suppress(ImportError):
            importlib.import_module("torch")

    def begin(self) -> None:
        """Simulate until the process ends; where that fails, say so."""
        try:
            if threading.current_thread() is not threading.main_thread():
                raise RuntimeError("torch must be imported in the main thread first")
            _load_package(self._settings["package"])
            from pytorch_memlab.simulation.simulator import simulation_of

            simulation = simulation_of(self._settings)
            simulation.__enter__()
            self._simulation = simulation
        except Exception as error:
            print(
                f"pytorch-memlab: process {os.getpid()} is not simulated: {error}", file=sys.stderr
            )

    def _end(self) -> None:
        if self._simulation is not None:
            self._simulation.__exit__(None, None, None)


def _do_nothing() -> None:
    """Torch is executed a second time."""


def _load_package(folder: str) -> None:
    """Import this package from where the program that started this process has it."""
    if _PACKAGE in sys.modules:
        return
    spec = PathFinder.find_spec(_PACKAGE, [folder])
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"there is no {_PACKAGE} in {folder}")
    module = sys.modules[_PACKAGE] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def _run_what_this_stands_before() -> None:
    """Run the next ``sitecustomize`` on the path, as if this folder were not on it."""
    sys.path[:] = [folder for folder in sys.path if folder != _FOLDER]
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


def _simulate(settings: dict[str, Any]) -> None:
    after_torch = _AfterTorch(settings)
    if "torch" in sys.modules:  # a .pth file has imported it
        after_torch.begin()
    else:
        sys.meta_path.insert(0, after_torch)


if __name__ == "sitecustomize":
    if _VARIABLE in os.environ:
        _simulate(json.loads(os.environ[_VARIABLE]))
    _run_what_this_stands_before()
