"""Constructors of tensors from data and a device, and of generators: they build on the CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ..._common.patches import Patches
from ..dispatch.transfers import move
from ..machine.cuda_generator import SimulatedGenerator
from ..machine.machine import Machine
from ..machine.simulated_gpu import SimulatedGPU
from .compilers import make_known

_FROM_DATA = ("tensor", "as_tensor", "asarray", "scalar_tensor")
_LAYOUTS = ("coo", "csr", "csc", "bsr", "bsc", "compressed")
_SPARSE = tuple(f"sparse_{layout}_tensor" for layout in _LAYOUTS)
_Generator = torch._C.Generator


def install(machine: Machine, patches: Patches) -> None:
    for names, replacing in ((_FROM_DATA, _from_data), (_SPARSE, _sparse)):
        for name in names:
            original = getattr(torch, name)
            replacement = machine.replacements[original] = replacing(machine, original)
            make_known(original, replacement)
            patches.set(torch, name, replacement)

    from_dlpack = torch.utils.dlpack.from_dlpack

    @functools.wraps(from_dlpack)
    def share(ext_tensor: Any, **kwargs: Any) -> Any:
        if _holds_simulated(machine, ext_tensor):
            return ext_tensor.detach()
        return from_dlpack(ext_tensor, **kwargs)

    for module in (torch, torch.utils.dlpack):
        patches.set(module, "from_dlpack", share)
    patches.set(torch, "get_device", torch.Tensor.get_device)
    patches.set(torch, "Generator", _generator_type(machine))


def _from_data(machine: Machine, original: Callable[..., Any]) -> Callable[..., Any]:
    keeps_device = original.__name__ in ("as_tensor", "asarray")

    @functools.wraps(original)
    def make(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        if device is None and isinstance(data, torch.Tensor) and keeps_device:
            return original(data, *args, **kwargs)
        if device is None:
            # torch.get_default_device() asks torch.tensor, which is what is being replaced here.
            device = torch.empty(0).device
            if isinstance(data, torch.Tensor) and device.type == "cpu":
                device = data.device
        gpu = machine.find_gpu(device)
        if kwargs.pop("pin_memory", False):
            if gpu is not None:
                raise RuntimeError("Only dense CPU tensors can be pinned")
            made = make(data, *args, device=device, **kwargs)
            machine.pin(made.untyped_storage())
            return made
        if gpu is None and not _holds_simulated(machine, data):
            return original(data, *args, device=device, **kwargs)
        requires_grad = kwargs.pop("requires_grad", False)
        with torch.device("cpu"):
            made = original(_on_cpu(machine, data), *args, **kwargs)
        if gpu is not None:
            made = move(machine, made, gpu, {})
        return made.requires_grad_() if requires_grad else made

    return make


def _holds_simulated(machine: Machine, data: Any) -> bool:
    return isinstance(data, torch.Tensor) and machine.gpu_of(data) is not None


def _on_cpu(machine: Machine, data: Any) -> Any:
    return move(machine, data, None, {}) if _holds_simulated(machine, data) else data


def _sparse(machine: Machine, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def make(*args: Any, device: Any = None, **kwargs: Any) -> Any:
        gpu = _sparse_gpu(machine, device, args)
        if gpu is None:
            return original(*args, device=device, **kwargs)
        parts = [
            torch.as_tensor(part, device=gpu.device)
            if isinstance(part, torch.Tensor) or _is_data(part, position, args)
            else part
            for position, part in enumerate(args)
        ]
        return original(*parts, **kwargs)

    return make


def _sparse_gpu(machine: Machine, device: Any, args: tuple[Any, ...]) -> SimulatedGPU | None:
    if device is not None:
        return machine.find_gpu(device)
    gpus = [machine.gpu_of(part) for part in args if isinstance(part, torch.Tensor)]
    return max(filter(None, gpus), key=lambda gpu: gpu.index, default=None)


def _is_data(part: Any, position: int, args: tuple[Any, ...]) -> bool:
    """A list of indices or values; the last of three or four arguments is the size."""
    is_size = len(args) > 2 and position == len(args) - 1
    return isinstance(part, (list, tuple)) and not is_size and not isinstance(part, torch.Size)


class _GeneratorType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _Generator)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, _Generator)


def _generator_type(machine: Machine) -> type:
    class Generator(metaclass=_GeneratorType):
        """``torch.Generator`` for the CPU and simulated GPUs."""

        __module__, __qualname__ = "torch", "Generator"  # where pickle finds it

        def __new__(cls, device: Any = "cpu") -> Any:
            gpu = None if device is None else machine.find_gpu(device)
            return _Generator() if gpu is None else SimulatedGenerator(gpu.index)

    return Generator
