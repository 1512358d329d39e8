"""All tensors out of the memory of the GPUs, or none."""

from __future__ import annotations

import warnings
import weakref
from collections import deque

import torch

from .._common.interrupts.uninterrupted import uninterrupted
from .._common.text.prose_size import counted, prose_size
from ..devices.allocations import allocated_memory, drop_workspaces
from ..errors import MemlabError
from ..tensors.live_objects import instances_of
from ..tensors.moves import MovedStorage, Views, find_gpu_memory, move_to_host
from .chunked_copies import Copies, progress_bar
from .host_blocks import host_storages
from .restoring import bring_back


def lend(moved: deque[MovedStorage], device: torch.device | None) -> None:
    """Move the storages of one GPU, or of all, into host memory: first bytes, then tensors."""
    refuse_traced_code()
    _refuse_captured_graphs()
    for moved_storage in moved:
        # An interrupted restore allocated memory, and did not fill it.
        emptied = moved_storage.emptied()
        if emptied is not None and emptied.nbytes():
            emptied.resize_(0)
    storages, views = find_gpu_memory(device)
    if not storages:
        return
    for used in {storage.device for storage in storages}:
        torch.cuda.synchronize(used)
    hosts = host_storages([storage.nbytes() for storage in storages])
    total = sum(host.nbytes() for host in hosts)
    with progress_bar("GPU to host", total) as arrived, Copies(arrived) as copies:
        for storage, host in zip(storages, hosts, strict=True):
            copies.copy(storage, host, storage.device)
        copies.wait()
    with uninterrupted():
        _move_all_to_host(moved, storages, hosts, views)


def empty_all_caches() -> None:
    """Release the memory that PyTorch caches: cuBLAS workspaces and free blocks."""
    drop_workspaces()
    torch.cuda.empty_cache()


def warn_of_what_stays(device: torch.device | None) -> None:
    """Warn of memory that is still allocated, on one GPU or on all."""
    indices = range(torch.cuda.device_count()) if device is None else [device.index]
    for index in indices:
        stays = allocated_memory(index)
        if stays:
            warnings.warn(
                f"{prose_size(stays)} stay on cuda:{index}: neither Python's objects nor "
                "autograd's graphs show who holds them (C++ code, or objects under gc.freeze())",
                stacklevel=3,
            )


def refuse_traced_code() -> None:
    """Raise where new tensors would be no plain ones: in ``torch.func`` and ``FakeTensorMode``."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        where = "a function that torch.func transforms (grad, vmap, jvp)"
    elif torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
        where = "FakeTensorMode"
    else:
        return
    raise MemlabError(f"the GPU cannot be lent or restored inside {where}: do so outside of it")


def _refuse_captured_graphs() -> None:
    graphs = len(instances_of(torch.cuda.CUDAGraph))
    if graphs:
        raise MemlabError(
            f"{counted(graphs, 'captured CUDA graph')} would use the present addresses, "
            "which other tensors may get: delete the graphs first, and capture them again after "
            "restore(); nothing was moved"
        )


def _move_all_to_host(
    moved: deque[MovedStorage],
    storages: list[torch.UntypedStorage],
    hosts: list[torch.UntypedStorage],
    views: Views,
) -> None:
    taken: deque[MovedStorage] = deque()
    try:
        for storage, host in zip(storages, hosts, strict=True):
            moved_storage = MovedStorage(storage.device, host, weakref.ref(storage))
            taken.append(moved_storage)
            move_to_host(storage, host, views.get(storage._cdata, []))
    except BaseException:
        try:
            bring_back(taken)
        finally:
            moved.extend(taken)  # what could not be brought back is not lost
        raise
    moved.extend(taken)
