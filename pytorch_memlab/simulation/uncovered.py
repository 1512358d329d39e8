"""CUDA calls that are not simulated: each raises one error that names it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from ..errors import UnsupportedCUDACallError

if TYPE_CHECKING:
    from collections.abc import Callable

    from .patches import Patches

_PREFIXES = ("_cuda_", "_nccl_", "_cudart")

_CLASSES = {
    torch.cuda: ("CUDAGraph", "MemPool", "ExternalStream", "CUDAPluggableAllocator", "graph"),
    torch.cuda.graphs: ("CUDAGraph", "graph"),
    torch.cuda.memory: ("MemPool", "CUDAPluggableAllocator"),
}

_FUNCTIONS = {
    torch.cuda: (
        "make_graphed_callables",
        "graph_pool_handle",
        "list_gpu_processes",
        "memory_usage",
        "device_memory_used",
        "utilization",
        "temperature",
        "power_draw",
        "clock_rate",
    ),
    torch.cuda.graphs: ("make_graphed_callables", "graph_pool_handle"),
}


def refuse(name: str) -> Callable[..., Any]:
    """A function that says that a call is not simulated.

    Args:
        name: of the call, as the program writes it.

    Returns:
        a function that raises ``UnsupportedCUDACallError``.
    """

    def uncovered(*args: Any, **kwargs: Any) -> Any:
        raise UnsupportedCUDACallError(_message(name))

    return uncovered


def install(patches: Patches) -> None:
    """Make every CUDA call that is still the real one refuse, until the patches are undone.

    Args:
        patches: who puts them back; what they have replaced already is covered.
    """
    covered = patches.names_of(torch._C)
    for name in vars(torch._C).copy():
        if name.startswith(_PREFIXES) and name not in covered:
            patches.set(torch._C, name, _refuse_internal(name))
    patches.set(torch._C, "__getattr__", _missing)
    for module, names in _CLASSES.items():
        for name in names:
            if hasattr(module, name):
                patches.set(module, name, _refusing_class(getattr(module, name)))
    for module, names in _FUNCTIONS.items():
        for name in names:
            if hasattr(module, name):
                patches.set(module, name, refuse(f"torch.cuda.{name}"))


def _refusing_class(original: type) -> type:
    """A class that is none of which there are objects; annotations and isinstance still hold."""
    name = original.__name__
    return type(name, (original,), {"__new__": refuse(f"torch.cuda.{name}"), "__doc__": None})


def _refuse_internal(name: str) -> Callable[..., Any]:
    def uncovered(*args: Any, **kwargs: Any) -> Any:
        raise UnsupportedCUDACallError(_message(_public_name(name)))

    return uncovered


def _missing(name: str) -> Any:
    if name.startswith(_PREFIXES):
        raise UnsupportedCUDACallError(_message(_public_name(name)))
    raise AttributeError(f"module 'torch._C' has no attribute {name!r}")


def _public_name(internal: str) -> str:
    """The function of ``torch.cuda`` that the program called, if one did."""
    name = f"torch._C.{internal}"
    frame = sys._getframe(2)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith(("torch.cuda.", "torch.nn.parallel.")) or module == "torch.cuda":
            name = f"{module}.{frame.f_code.co_name}"
        elif not module.startswith("torch"):
            break
        frame = frame.f_back  # type: ignore[assignment]
    return name


def _message(name: str) -> str:
    return f"{name} is not covered by the simulated GPU; run this part on a real one"
