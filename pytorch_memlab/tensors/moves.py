"""Moving storages out of GPU memory and back, under the tensors that look at them."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from .live_tensors import LiveTensors, can_point_elsewhere


@dataclass(slots=True)
class MovedStorage:
    """A storage whose bytes are in host memory."""

    device: torch.device
    host: torch.UntypedStorage  # the bytes
    emptied: weakref.ref[torch.UntypedStorage]


@dataclass(frozen=True, slots=True)
class GPUMemory:
    """The storages and tensors of GPUs that Python and autograd reach."""

    storages: list[torch.UntypedStorage]
    views: dict[int, list[torch.Tensor]]


def find_gpu_memory(device: torch.device | None = None) -> GPUMemory:
    """Storages on CUDA devices: of live tensors, their gradients, and what backward needs."""
    found: dict[int, torch.UntypedStorage] = {}
    views: dict[int, list[torch.Tensor]] = defaultdict(list)
    live = LiveTensors()
    for tensor, storage in live.storages():
        if storage.device.type == "cuda" and storage.nbytes():
            found[storage._cdata] = storage
            if live.is_movable(tensor):
                views[storage._cdata].append(tensor)
    foreign = [_range(storage) for storage in found.values() if not storage.resizable()]
    own = [
        storage
        for storage in found.values()
        if device in (None, storage.device)
        and storage.resizable()
        and not _overlaps(_range(storage), foreign)
    ]
    return GPUMemory(sorted(own, key=lambda storage: storage.device.index), views)


def move_to_host(
    storage: torch.UntypedStorage, host: torch.UntypedStorage, views: Iterable[torch.Tensor]
) -> None:
    """Point tensors at the copy in host memory, and give the storage's memory back.

    Autograd and other C++ code that reference the storage keep it, empty, until it has ``room``
    again.
    """
    for tensor in views:
        point(tensor, host)
    storage.resize_(0)


def room(moved: MovedStorage, has_views: bool) -> torch.UntypedStorage | None:
    """Memory on the GPU for bytes that are to come back, as of its default stream."""
    storage = moved.emptied()
    nbytes = moved.host.nbytes()
    if storage is None and not has_views:
        return None
    with torch.cuda.stream(torch.cuda.default_stream(moved.device)):
        if storage is None:
            return torch.empty(nbytes, dtype=torch.uint8, device=moved.device).untyped_storage()
        if storage.nbytes() != nbytes:
            storage.resize_(nbytes)
    return storage


def views_in_host_memory() -> dict[int, list[torch.Tensor]]:
    """Storage of the host -> the live tensors that look at it."""
    views: dict[int, list[torch.Tensor]] = defaultdict(list)
    for tensor, storage in LiveTensors().storages():
        if tensor is not None and storage.device.type == "cpu":
            views[storage._cdata].append(tensor)
    return views


def movable_views() -> dict[int, list[torch.Tensor]]:
    """Storage on a GPU -> the live tensors that look at it and may change their device."""
    views: dict[int, list[torch.Tensor]] = defaultdict(list)
    live = LiveTensors()
    for tensor, storage in live.storages():
        if storage.device.type == "cuda" and live.is_movable(tensor):
            views[storage._cdata].append(tensor)
    return views


def view_bases(views: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors that some views are views of, as autograd knows it."""
    bases = {id(base): base for view in views if (base := view._base) is not None}
    return [base for base in bases.values() if can_point_elsewhere(base)]


def _range(storage: torch.UntypedStorage) -> range:
    return range(storage.data_ptr(), storage.data_ptr() + storage.nbytes())


def _overlaps(one: range, others: list[range]) -> bool:
    return any(one.start < other.stop and other.start < one.stop for other in others)


def point(tensor: torch.Tensor, storage: torch.UntypedStorage) -> None:
    """Make a tensor look at another storage, the same way as at its own."""
    subclass = torch._C.DisableTorchFunctionSubclass()
    with torch.no_grad(), torch.inference_mode(False), subclass:
        view = torch.empty(0, dtype=tensor.dtype, device=storage.device)
        view.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
        tensor.data = view
