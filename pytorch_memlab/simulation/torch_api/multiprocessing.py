"""``torch.multiprocessing`` under simulation: tensors of a GPU that several processes share.

On CUDA a process opens the memory of another one, and its own allocator counts nothing of it. Here
that is memory of the CPU, which ``torch.multiprocessing`` can share.
"""

from __future__ import annotations

import multiprocessing.reduction
import os
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing import get_sharing_strategy

from ..._common.patches import Patches
from ..machine.machine import Machine

_Storage: Any = torch.UntypedStorage


@dataclass(frozen=True, eq=False)
class _Handle:
    """The handle by which another process opens the memory of a storage.

    Args:
        nbytes: of the storage.
        descriptor: of a file in memory, that pickle takes along; None: the file has a name.
        name: of the file and of what manages it.
    """

    nbytes: int
    descriptor: Any = None
    name: tuple[Any, Any] | None = None


def install(machine: Machine, patches: Patches) -> None:
    """Let storages of simulated GPUs go to other processes and come from them, until undone."""
    values = machine.values

    def share(storage: Any) -> tuple[Any, ...]:
        nbytes = storage.nbytes()
        has_values = nbytes > 0 and (values is None or not values.storage_lacks_values(storage))
        handle = _shared(storage) if has_values else _Handle(nbytes)
        # For none or 0 bytes, PyTorch makes a storage of a device that C++ does not have.
        return storage.device.index, handle, max(nbytes, 1), 0, b"", 0, b"", False

    def open_shared(
        _kind: type, device: int, handle: _Handle, *_counters: Any
    ) -> torch.UntypedStorage:
        with torch._C._DisableTorchDispatch():
            if values is not None and handle.descriptor is None and handle.name is None:
                storage = values.make((handle.nbytes,), torch.uint8).untyped_storage()
            else:
                storage = _opened(handle)
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
