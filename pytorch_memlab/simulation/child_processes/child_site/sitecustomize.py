"""Python runs this when a process starts that a simulated program started.

It joins the overlay of a dry run at once. Otherwise it imports nothing of torch or of this package
before the process itself imports torch. Then it runs the ``sitecustomize`` that the process would
have run without it.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any

_VARIABLE = "PYTORCH_MEMLAB_SIMULATE"
_OVERLAY = "PYTORCH_MEMLAB_OVERLAY"
_PACKAGE = "pytorch_memlab"
_FOLDER = os.path.dirname(os.path.abspath(__file__))
_COMMON = os.path.join(_FOLDER, *[os.pardir] * 3, "_common")


class _Simulation:
    """Begins as soon as torch is imported, and ends when the process does."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._has_begun = False
        self._exit: Callable[..., None] | None = None
        atexit.register(self._end)  # after what the program registers

    def begin(self, _torch: ModuleType) -> None:
        """Simulate until the process ends; where that fails, say so."""
        if self._has_begun:  # torch is executed a second time
            return
        self._has_begun = True
        try:
            if threading.current_thread() is not threading.main_thread():
                raise RuntimeError("torch must be imported in the main thread first")
            _load_package(self._settings["package"])
            from pytorch_memlab import GPU, simulate

            simulation = simulate(GPU(**self._settings["gpu"]), **self._settings["options"])
            simulation.__enter__()
            self._exit = simulation.__exit__
        except Exception as error:
            print(
                f"pytorch-memlab: process {os.getpid()} is not simulated: {error}", file=sys.stderr
            )

    def _end(self) -> None:
        if self._exit is not None:
            self._exit(None, None, None)


def _import_torch(_package: ModuleType) -> None:
    with suppress(ImportError):
        importlib.import_module("torch")


class _TorchFirst:
    """Imports torch before the program imports a module of this package that needs it."""

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> None:
        """Find no module."""
        if name == "torch":
            sys.meta_path.remove(self)
        elif name.startswith(f"{_PACKAGE}."):
            sys.meta_path.remove(self)
            with suppress(ImportError):
                importlib.import_module("torch")


def _load_package(folder: str) -> None:
    """Import this package from where the program that started this process has it."""
    if _PACKAGE in sys.modules:
        return
    spec = PathFinder.find_spec(_PACKAGE, [folder])
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"there is no {_PACKAGE} in {folder}")
    module = sys.modules[_PACKAGE] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def _loaded(room: str, name: str) -> Any:
    """A module of the package, which itself would import too much."""
    path = os.path.join(_COMMON, room, f"{name}.py")
    spec: Any = importlib.util.spec_from_file_location(name, path)
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _join_overlay(settings: dict[str, Any]) -> None:
    """See the files that the program which started this process sees, and change no others."""
    try:
        _load_package(settings["package"])
        importlib.import_module(f"{_PACKAGE}.simulation.dry_run.files.installed").join()
    except Exception as error:
        print(
            f"pytorch-memlab: process {os.getpid()} changes files, it is not part of the dry run:"
            f" {error}",
            file=sys.stderr,
        )


def _simulate(settings: dict[str, Any]) -> None:
    if os.environ.get(_OVERLAY):
        _join_overlay(settings)
    imports = _loaded("patching", "after_import").AfterImport()
    imports.call("torch", _Simulation(settings).begin)
    # The package imports torch from modules that are not complete then.
    if _PACKAGE in sys.modules:
        sys.meta_path.insert(0, _TorchFirst())
    else:
        imports.call(_PACKAGE, _import_torch)
    imports.start()


if __name__ == "sitecustomize":
    if _VARIABLE in os.environ:
        _simulate(json.loads(os.environ[_VARIABLE]))
    _loaded("process", "next_sitecustomize").run_next_sitecustomize(_FOLDER)
