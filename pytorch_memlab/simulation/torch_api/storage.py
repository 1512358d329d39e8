"""Methods of storages that name a device: saving, loading, copying and sharing tensors use them.

On CUDA a process opens the memory of another one, and its own allocator counts nothing of it. Here
that is memory of the CPU, which ``torch.multiprocessing`` can share.
"""

from __future__ import annotations

import multiprocessing.reduction
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import UntypedStorage
from torch.multiprocessing import get_sharing_strategy

from ..._common.frames.traceback_frames import passes_on, without_frames
from ..._common.patching.patches import Patches
from ..machine.machine import Machine
from ..machine.simulated_gpu import SimulatedGPU
from ..machine.tensor_values import TensorValues

_Storage: Any = UntypedStorage
_cpu_device: Callable[[UntypedStorage], torch.device]
_cpu_device = vars(torch._C.StorageBase)["device"].__get__


def install(machine: Machine, patches: Patches) -> None:
    _install_devices(machine, patches)
    _install_moves(machine, patches)
    _install_sharing(machine, patches)
    if machine.values is not None:
        _install_copies(machine.values, patches)


def _gpu_of(machine: Machine, storage: UntypedStorage) -> SimulatedGPU | None:
    allocation = machine.allocations.known.get(storage._cdata)
    return None if allocation is None else allocation.gpu


def _install_devices(machine: Machine, patches: Patches) -> None:
    """Let storages tell where they are, and be made there and resized there."""
    new_on_cpu = _Storage.__new__
    gpu_of = partial(_gpu_of, machine)

    def device(storage: UntypedStorage) -> torch.device:
        gpu = gpu_of(storage)
        return _cpu_device(storage) if gpu is None else gpu.device

    def data_ptr(storage: UntypedStorage) -> int:
        machine.overwritten.check_data(storage)
        return machine.address_of(storage)

    def new(cls: type, *args: Any, device: Any = None, **kwargs: Any) -> UntypedStorage:
        gpu = None if device is None else machine.find_gpu(device)
        if gpu is None and device is not None:
            kwargs["device"] = device
        storage: UntypedStorage = new_on_cpu(cls, *args, **kwargs)
        if gpu is not None:
            machine.put(storage, gpu)
        return storage

    @patches.around(_Storage, "resize_")
    def resize_(resize: Callable[..., Any], self: UntypedStorage, size: int) -> Any:
        result = resize(self, size)
        if self._cdata in machine.allocations.known:
            machine.resized(self)
        return result

    members = {
        "__new__": staticmethod(without_frames(new)),
        "device": property(device),
        "is_cuda": property(lambda self: gpu_of(self) is not None),
        "data_ptr": without_frames(data_ptr),
    }
    patches.set_all(_Storage, members)


def _install_moves(machine: Machine, patches: Patches) -> None:
    """Let storages be copied to simulated GPUs and from them."""
    values = machine.values
    to_other: Callable[..., UntypedStorage] = _Storage.to
    clone_other: Callable[[UntypedStorage], UntypedStorage] = _Storage.clone
    gpu_of = partial(_gpu_of, machine)

    def move(storage: UntypedStorage, device: Any) -> UntypedStorage:
        gpu = machine.find_gpu(device)
        if gpu is None and torch.device(device).type != "cpu":
            return to_other(storage, device=device)
        here = gpu_of(storage)
        is_there = here is gpu and (gpu is not None or _cpu_device(storage).type == "cpu")
        return storage if is_there else copy(storage, gpu)

    def copy(storage: UntypedStorage, gpu: SimulatedGPU | None) -> UntypedStorage:
        if values is not None and values.storage_lacks_values(storage):
            new = values.make_bytes(storage.nbytes()).untyped_storage()
        else:
            new = UntypedStorage(storage.nbytes())
            # C++ copies through tensors that the program does not see.
            with torch._C._DisableTorchDispatch():
                new.copy_(storage, False)
        if gpu is not None:
            machine.put(new, gpu)
        return new

    def clone(storage: UntypedStorage) -> UntypedStorage:
        here = _cpu_device(storage).type == "cpu"
        return copy(storage, gpu_of(storage)) if here else clone_other(storage)

    members: dict[str, Any] = {
        "to": lambda self, *, device, non_blocking=False: move(self, device),
        "cuda": lambda self, device=None, non_blocking=False: move(self, device),
        "cpu": lambda self: move(self, "cpu"),
        "clone": clone,
    }
    patches.set_all(_Storage, members)


def _install_copies(values: TensorValues, patches: Patches) -> None:
    @patches.around(_Storage, "copy_")
    @passes_on
    def copy_(copy: Any, self: UntypedStorage, source: Any, *args: Any, **kwargs: Any) -> Any:
        holds_zeros = values.absent.known.get(getattr(source, "_cdata", 0))
        if holds_zeros is not False:
            copy(self, source, *args, **kwargs)
        if holds_zeros is not None:
            values.add(self, holds_zeros)
        return self


@dataclass(frozen=True, eq=False)
class _Handle:
    """The handle by which another process opens the memory of a storage."""

    # It is a file in memory, by its descriptor, or by the names of the file and of what manages it.

    nbytes: int
    descriptor: Any = None
    name: tuple[Any, Any] | None = None


def _install_sharing(machine: Machine, patches: Patches) -> None:
    """Let storages of simulated GPUs go to other processes and come from them."""
    values = machine.values

    def share(storage: Any) -> tuple[Any, ...]:
        if not storage.is_cuda:
            raise RuntimeError("_share_cuda_: only available on CUDA")
        nbytes = storage.nbytes()
        has_values = nbytes > 0 and (values is None or not values.storage_lacks_values(storage))
        handle = _shared(storage) if has_values else _Handle(nbytes)
        # For none or 0 bytes, PyTorch makes a storage of a device that C++ does not have.
        return storage.device.index, handle, max(nbytes, 1), 0, b"", 0, b"", False

    def open_shared(_kind: type, device: int, handle: _Handle, *_counters: Any) -> UntypedStorage:
        with torch._C._DisableTorchDispatch():
            if values is not None and handle.descriptor is None and handle.name is None:
                storage = values.make((handle.nbytes,), torch.uint8).untyped_storage()
            else:
                # In torch 2.6 the object that opens a file ends before its storage does. A
                # tensor gives the one that lives as long.
                holder = torch.empty(0, dtype=torch.uint8, device="cpu").set_(_opened(handle))
                storage = holder.untyped_storage()
        machine.label(storage, machine.gpu(device), handle.nbytes)
        return storage

    patches.set(_Storage, "_share_cuda_", share)
    patches.set(_Storage, "_new_shared_cuda", classmethod(open_shared))
    patches.set(_Storage, "_release_ipc_counter", classmethod(lambda *_args, **_options: None))


def _shared(storage: Any) -> _Handle:
    """Move a storage into memory that processes share, and tell where that is."""
    if get_sharing_strategy() == "file_system":
        manager, name, nbytes = storage._share_filename_cpu_()
        storage._shared_incref()
        return _Handle(nbytes, name=(manager, name))
    descriptor, nbytes = storage._share_fd_cpu_()
    return _Handle(nbytes, multiprocessing.reduction.DupFd(descriptor))


def _opened(handle: _Handle) -> Any:
    if handle.nbytes == 0:
        return _Storage(0)
    if handle.name is not None:
        named = _Storage._new_shared_filename_cpu(*handle.name, handle.nbytes)
        return named._shared_decref()
    descriptor = handle.descriptor.detach()
    try:
        return _Storage._new_shared_fd_cpu(descriptor, handle.nbytes)
    finally:
        os.close(descriptor)
