"""Libraries that call CUDA themselves: replaced once a program imports them."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType

import torch

from ..._common.patching.after_import import AfterImport
from ..._common.patching.patches import Patches
from ..machine.machine import Machine

_LIBRARIES = ("triton", "bitsandbytes")
"""Packages, each with a module of its name here, which is imported after the package."""

_LOADING_KERNELS = ("bitsandbytes.cextension",)
"""Modules that load CUDA kernels where they find a GPU, and kernels for the CPU otherwise."""


def install(machine: Machine, patches: Patches) -> None:
    """Replace names of libraries that are imported now or later, until undone."""
    imports = AfterImport()
    for name in _LOADING_KERNELS:
        imports.within(name, _without_gpu)
    for name in _LIBRARIES:
        imports.call(name, partial(_replace, machine, patches))
    imports.start()
    patches.before_undo(imports.stop)


def _replace(machine: Machine, patches: Patches, package: ModuleType) -> None:
    importlib.import_module(f".{package.__name__}", __name__).install(machine, patches, package)


@contextmanager
def _without_gpu(_module: ModuleType) -> Iterator[None]:
    is_available = torch.cuda.is_available
    torch.cuda.is_available = lambda: False
    try:
        yield
    finally:
        torch.cuda.is_available = is_available
