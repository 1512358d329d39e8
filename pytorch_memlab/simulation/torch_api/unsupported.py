"""CUDA calls that are not simulated: each raises one error that names it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from ..._common.patching.patches import Patches
from ..machine.machine import Machine
from ..machine.refused_calls import refusal, unsupported

_PREFIXES = ("_cuda_", "_nccl_", "_cudart", "_gds_", "_accelerator_")

_BETWEEN = ("torch", __name__.partition(".")[0])
"""Where modules begin that pass a call on."""

_PUBLIC = ("torch.cuda.", "torch.accelerator.", "torch.backends.cuda.", "torch.nn.parallel.")
"""Beginnings of the modules whose functions programs call."""

_MODULES = (
    *("torch.cuda", "torch.cuda.graphs", "torch.cuda.green_contexts", "torch.cuda.memory"),
    *("torch.cuda.streams", "torch.accelerator", "torch.accelerator.graphs"),
)
_NAMES = (
    *("ExternalStream", "CUDAPluggableAllocator", "GreenContext", "Graph", "list_gpu_processes"),
    *("memory_usage", "device_memory_used", "utilization", "temperature", "power_draw"),
    *("clock_rate", "SMPartition"),
)
"""Classes and functions of these modules that do more than to call C++."""


def install(_machine: Machine, patches: Patches) -> None:
    """Make every CUDA call that is still the real one refuse, until undone."""
    green_contexts = sys.modules.get("torch.cuda.green_contexts")
    if hasattr(green_contexts, "_is_locality_software_supported"):  # from torch 2.15 on
        # As with a driver before CUDA 13.4: a GPU is one domain, and the real driver is not asked.
        patches.set(green_contexts, "_is_locality_software_supported", lambda: False)
    covered = patches.names_of(torch._C)
    for name in vars(torch._C).copy():
        if name.startswith(_PREFIXES) and name not in covered:
            patches.set(torch._C, name, _refuse_internal(name))
    patches.set(torch._C, "__getattr__", _missing)
    for module_name in _MODULES:
        module = sys.modules.get(module_name)
        root = ".".join(module_name.split(".")[:2])
        for name in _NAMES:
            original = getattr(module, name, None)
            if isinstance(original, type):
                patches.set(module, name, _refusing_class(original, f"{root}.{name}"))
            elif original is not None:
                patches.set(module, name, _refusing_function(original, f"{root}.{name}"))


@functools.cache
def _refusing_class(original: type, name: str) -> type:
    """A class that is none of which there are objects; annotations and isinstance still hold."""
    makers = {
        member: staticmethod(refusal(f"{name}.{member}"))
        for member, value in vars(original).items()
        if isinstance(value, (staticmethod, classmethod)) and not member.startswith("_")
    }
    members = {"__new__": refusal(name), "__doc__": None, **makers}
    return type(original.__name__, (original,), members)


def _refusing_function(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    stand_in = refusal(name)
    stand_in.__name__ = original.__name__
    return stand_in


def _refuse_internal(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise unsupported(_public_name(name))

    return refuse


def _missing(name: str) -> Any:
    if name.startswith(_PREFIXES):
        raise unsupported(_public_name(name))
    raise AttributeError(f"module 'torch._C' has no attribute {name!r}")


def _public_name(internal: str) -> str:
    """The function of ``torch.cuda`` that the program called, if one did."""
    name = f"torch._C.{internal}"
    frame = sys._getframe(2)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if f"{module}.".startswith(_PUBLIC):
            name = f"{module}.{frame.f_code.co_name}"
        elif not module.startswith(_BETWEEN):
            break
        frame = frame.f_back  # type: ignore[assignment]
    return name
