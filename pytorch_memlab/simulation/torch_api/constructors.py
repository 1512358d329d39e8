"""Constructors of tensors from data and a device, and of generators: they build on the CPU.

``torch.cuda.FloatTensor`` and its kind are also types to ask for, and names to convert to. Those of
``torch.cuda.sparse`` can be asked for; PyTorch itself makes no more of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from numbers import Integral
from typing import Any

import torch

from ..._common.frames.traceback_frames import passes_on, without_frames
from ..._common.patching.patches import Patches
from ..dispatch import fake_tensors
from ..dispatch.transfers import move
from ..machine.cuda_generator import SimulatedGenerator
from ..machine.machine import Machine
from ..machine.refused_calls import mixed_devices, refusal
from ..machine.simulated_gpu import SimulatedGPU
from .compilers import make_known

_FROM_DATA = ("tensor", "as_tensor", "asarray", "scalar_tensor")
_LAYOUTS = ("coo", "csr", "csc", "bsr", "bsc", "compressed")
_CHECKS_PARTS = torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors.default
_SPARSE = tuple(f"sparse_{layout}_tensor" for layout in _LAYOUTS)
_Generator = torch._C.Generator
_DTYPES = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "LongTensor": torch.int64,
    "IntTensor": torch.int32,
    "ShortTensor": torch.int16,
    "CharTensor": torch.int8,
    "ByteTensor": torch.uint8,
    "BoolTensor": torch.bool,
}


def install(machine: Machine, patches: Patches) -> None:
    for names, replacing in ((_FROM_DATA, _from_data), (_SPARSE, _sparse)):
        for name in names:
            original = getattr(torch, name)
            replacement = without_frames(replacing(machine, original))
            machine.replacements[original] = replacement
            make_known(original, replacement)
            patches.set(torch, name, replacement)

    patches.set(torch, "get_device", torch.Tensor.get_device)
    patches.set(torch, "Generator", _generator_type(machine))
    _install_legacy_types(machine, patches)


def _from_data(machine: Machine, original: Callable[..., Any]) -> Callable[..., Any]:
    converts = original.__name__ in ("as_tensor", "asarray")
    is_scalar = original.__name__ == "scalar_tensor"

    @functools.wraps(original)
    @passes_on
    def make(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        if device is None:
            # torch.get_default_device() asks torch.tensor, which is what is being replaced here.
            device = torch.empty(0).device
            if isinstance(data, torch.Tensor) and device.type == "cpu":
                device = data.device
        if is_scalar and fake_tensors.are_on():  # it is traced, with the device that it names
            return original(data, *args, device=device, **kwargs)
        gpu = machine.find_gpu(device)
        if converts and isinstance(data, torch.Tensor):
            where = device if gpu is None else gpu.device
            return _converted(machine, original, data, where, kwargs)
        if kwargs.pop("pin_memory", False):
            if gpu is not None:
                raise RuntimeError("Only dense CPU tensors can be pinned")
            made = make(data, *args, device=device, **kwargs)
            machine.pin(made.untyped_storage())
            return made
        if gpu is None and not _holds_simulated(machine, data):
            return original(data, *args, device=device, **kwargs)
        requires_grad = kwargs.pop("requires_grad", False)
        made = original(_on_cpu(machine, data), *args, device="cpu", **kwargs)
        if gpu is not None:
            if kwargs.get("copy") is False:
                raise _no_alias(made.device, gpu.device)
            made = move(machine, made, gpu, {})
        return made.requires_grad_() if requires_grad else made

    return make


def _converted(
    machine: Machine, original: Callable[..., Any], data: torch.Tensor, device: Any, kwargs: Any
) -> Any:
    """A tensor on a device and of a type, copied only if one of them is another."""
    copy, converted = kwargs.pop("copy", None), data
    if copy is not False:
        converted = data.to(device, kwargs.pop("dtype", None) or data.dtype)
    elif data.device != torch.device(device):
        raise _no_alias(data.device, device)
    if copy is not None and converted is data:
        kwargs["copy"] = copy
    where = converted.device if machine.gpu_of(converted) is None else "cpu"
    with torch._C.DisableTorchFunction():  # else the modes ask for a device, or move it to this one
        return original(converted, device=where, **kwargs)


def _no_alias(source: torch.device, device: Any) -> ValueError:
    return ValueError(f"can't alias tensor from device '{source}' to '{device}'.")


def _holds_simulated(machine: Machine, data: Any) -> bool:
    return isinstance(data, torch.Tensor) and machine.gpu_of(data) is not None


def _on_cpu(machine: Machine, data: Any) -> Any:
    return move(machine, data, None, {}) if _holds_simulated(machine, data) else data


def _sparse(machine: Machine, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def make(*args: Any, device: Any = None, **kwargs: Any) -> Any:
        gpu = _sparse_gpu(machine, device, args)
        if gpu is None:
            moved = (part.cpu() if isinstance(part, torch.Tensor) else part for part in args)
            return original(*moved, device=device, **kwargs)
        if len(args) == 1 and not isinstance(args[0], torch.Tensor):  # a size: no elements
            kwargs.pop("check_invariants", None)
            return torch.zeros(*args, layout=torch.sparse_coo, device=gpu.device, **kwargs)
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
    gpus = {machine.gpu_of(part) for part in args if isinstance(part, torch.Tensor)}
    for gpu in filter(None, gpus):
        for other in gpus - {gpu}:
            device = torch.device("cpu") if other is None else other.device
            raise mixed_devices(_CHECKS_PARTS, gpu, str(device))
    return gpus.pop() if gpus else None


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

        @without_frames
        def __new__(cls, device: Any = "cpu") -> Any:
            gpu = None if device is None else machine.find_gpu(device)
            return _Generator() if gpu is None else SimulatedGenerator(gpu.index)

    return Generator


def dtype_of(kind: Any) -> torch.dtype | None:
    """The dtype that a legacy type, or its name, stands for; None for anything else."""
    if type(kind) is _LegacyType:
        return kind.dtype
    if isinstance(kind, str) and kind.startswith("torch.cuda."):
        return _DTYPES.get(kind.rpartition(".")[2])
    return None


def _install_legacy_types(machine: Machine, patches: Patches) -> None:
    for name, dtype in _DTYPES.items():
        members = {
            "__new__": _legacy_constructor(machine, dtype),
            "dtype": dtype,
            "machine": machine,
        }
        patches.set(torch.cuda, name, _LegacyType(name, (), members))
    for name, kind in vars(torch.cuda.sparse).copy().items():
        if isinstance(getattr(kind, "dtype", None), torch.dtype):
            new = refusal(f"torch.cuda.sparse.{name}")
            members = {"__new__": new, "dtype": kind.dtype, "machine": machine, "is_sparse": True}
            patches.set(torch.cuda.sparse, name, _LegacyType(name, (), members))

    constructor: Any = _plain_tensor

    # TorchDynamo compares the signature of torch.Tensor.__new__ with its own, but for this one.
    def make(*args: Any, **kwargs: Any) -> Any:
        made = constructor(*args, **kwargs)
        return made if type(made) is args[0] else made.as_subclass(args[0])

    @patches.around(torch._C, "_set_default_tensor_type")
    def set_default(original: Callable[[Any], None], kind: Any) -> None:
        nonlocal constructor
        dtype = dtype_of(kind)
        if dtype is None:
            original(kind)
            torch.set_default_device(None)
            constructor = _plain_tensor
        elif not dtype.is_floating_point:
            raise TypeError("only floating-point types are supported as the default type")
        else:
            torch.set_default_dtype(dtype)
            torch.set_default_device("cuda")
            # torch.Tensor() follows the default type, but not the default device.
            constructor = _legacy_constructor(machine, dtype)

    patches.set(torch.Tensor, "__new__", staticmethod(make))


def _plain_tensor(_cls: Any, *args: Any, **kwargs: Any) -> Any:
    """A tensor of no subclass, of which C++ makes none while a mode is on."""
    return torch._C.TensorBase.__new__(torch.Tensor, *args, **kwargs)


class _LegacyType(type):
    """``isinstance(x, torch.cuda.FloatTensor)`` asks for a dtype, and a layout, on a GPU."""

    dtype: torch.dtype
    machine: Machine
    is_sparse = False

    def __instancecheck__(cls, instance: object) -> bool:
        return (
            isinstance(instance, torch.Tensor)
            and instance.dtype == cls.dtype
            and (not cls.is_sparse or instance.layout is torch.sparse_coo)
            and cls.machine.gpu_of(instance) is not None
        )


def _legacy_constructor(machine: Machine, dtype: torch.dtype) -> Any:
    @passes_on
    def new(cls: Any, *args: Any, device: Any = None) -> Any:
        gpu = machine.find_gpu(device)
        if gpu is None:
            raise RuntimeError(
                "legacy constructor expects device type: cuda but device type: "
                f"{torch.device(device).type} was passed"
            )
        if len(args) == 1 and isinstance(args[0], torch.Tensor):
            if type(cls) is _LegacyType and not isinstance(args[0], cls):
                raise TypeError(f"expected torch.cuda.{cls.__name__} (got {args[0].type()})")
            return torch.ops.aten.alias(args[0])
        if len(args) == 1 and not isinstance(args[0], (Integral, torch.Size)):
            return torch.tensor(args[0], dtype=dtype, device=gpu.device)
        sizes = args[0] if args and isinstance(args[0], torch.Size) else args or (0,)
        return torch.empty(tuple(sizes), dtype=dtype, device=gpu.device)

    return without_frames(new)
