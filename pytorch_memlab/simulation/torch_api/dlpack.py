"""DLPack: a capsule of a simulated tensor names its GPU, so that libraries of the CPU refuse it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from ..._common.patching.patches import Patches
from ..._common.torch.storages import host_address
from ..machine.machine import Machine

_CPU, _CUDA = 1, 2
"""``DLDeviceType`` of ``dlpack.h``."""

_PLACES = {b"dltensor": 8, b"dltensor_versioned": 40}
"""Where a device stands in the structures that capsules of these names hold."""

Export = Callable[..., Any]


class _Device(ctypes.Structure):
    """``DLDevice``."""

    _fields_ = (("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32))


def install(machine: Machine, patches: Patches) -> None:
    for module in (torch._C, torch.utils.dlpack):  # torch 2.6 has its own name for it
        if hasattr(module, "_from_dlpack"):
            patches.set(module, "_from_dlpack", _from_capsule(machine, torch._C._from_dlpack))
    to_capsule = _to_capsule(machine, torch._C._to_dlpack)
    patches.set(torch._C, "_to_dlpack", to_capsule)
    patches.set(torch.utils.dlpack, "to_dlpack", to_capsule)
    patches.set(torch, "to_dlpack", to_capsule)
    if hasattr(torch._C, "_to_dlpack_versioned"):
        versioned = _to_capsule(machine, torch._C._to_dlpack_versioned)
        patches.set(torch._C, "_to_dlpack_versioned", versioned)


def _to_capsule(machine: Machine, original: Export) -> Export:
    """Copy before the export, as ``maybeCopyTensor`` of ``aten/src/ATen/DLConvertor.cpp`` does."""

    def export(
        tensor: torch.Tensor,
        *,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
        **options: Any,
    ) -> Any:
        device = tensor.device if dl_device is None else _torch_device(*dl_device)
        if device != tensor.device:
            if copy is False:
                raise ValueError(
                    f"cannot move (i.e. copy=False) tensor from {tensor.device} to {device}"
                    " without copying."
                )
            tensor = tensor.to(device)
        elif copy:
            tensor = tensor.clone()
        machine.overwritten.check_tensor(tensor)
        capsule = original(tensor, **options)
        gpu = machine.gpu_of(tensor)
        if gpu is not None:
            _set_device(capsule, _CUDA, gpu.device.index)
        return capsule

    return export


def _torch_device(kind: int, index: int) -> torch.device:
    if int(kind) not in (_CPU, _CUDA):
        raise BufferError(f"Unsupported device_type: {kind}")
    return torch.device("cpu") if int(kind) == _CPU else torch.device("cuda", index)


def _from_capsule(machine: Machine, original: Callable[[Any], torch.Tensor]) -> Any:
    def share(capsule: Any) -> torch.Tensor:
        _set_device(capsule, _CPU, 0)
        made = original(capsule)
        address = made.data_ptr()
        storage = machine.allocations.storage_at(address)
        if storage is None:
            return made
        offset = (address - host_address(storage)) // made.itemsize
        return torch._C.TensorBase.set_(made, storage, offset, made.shape, made.stride())

    return share


def _set_device(capsule: Any, kind: int, index: int) -> None:
    """Write into a capsule where its memory is; one that is used up stays as it is."""
    for name, place in _PLACES.items():
        if _is_valid(capsule, name):
            device = _Device.from_address(_pointer(capsule, name) + place)
            device.device_type, device.device_id = kind, index


_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
