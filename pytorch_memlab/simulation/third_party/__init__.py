"""Libraries that call CUDA themselves: replaced once a program imports them."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import torch

from ..torch_api.after_import import AfterImport
from . import bitsandbytes, triton

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import ModuleType

    from ..._common.patches import Patches
    from ..machine.machine import Machine

_LIBRARIES: Mapping[str, Callable[[Machine, Patches, ModuleType], None]] = {
    "triton": triton.install,
    "bitsandbytes": bitsandbytes.install,
}
"""By the name of the library's package: replaces its names once that package is imported."""

_LOADING_KERNELS = ("bitsandbytes.cextension",)
"""Modules that load CUDA kernels where they find a GPU, and kernels for the CPU otherwise."""


def install(machine: Machine, patches: Patches) -> None:
    """Replace names of libraries that are imported now or later, until undone."""
    imports = AfterImport()
    for name in _LOADING_KERNELS:
        imports.within(name, _without_gpu)
    for name, replace in _LIBRARIES.items():
        imports.call(name, partial(replace, machine, patches))
    imports.start()
    patches.before_undo(imports.stop)


@contextmanager
def _without_gpu(_module: ModuleType) -> Iterator[None]:
    is_available = torch.cuda.is_available
    torch.cuda.is_available = lambda: False
    try:
        yield
    finally:
        torch.cuda.is_available = is_available
