"""Moving storages out of GPU memory and back, under the tensors that look at them."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from .held import not_held
from .living import gradient_of, living
from .memory import parts_of
from .saved import saved_for_backward

_MARK = "pytorch_memlab"


@dataclass(slots=True)
class MovedStorage:
    """A storage whose bytes are in host memory.

    Args:
        device: where they came from.
        host: the bytes.
        emptied: the storage on the device, for as long as anything still holds it.
    """

    device: torch.device
    host: torch.UntypedStorage
    emptied: weakref.ref[torch.UntypedStorage]


@dataclass(frozen=True, slots=True)
class GPUMemory:
    """What Python and autograd know of the GPUs.

    Args:
        storages: those with memory that PyTorch's allocator gave them.
        views: storage -> the tensors that can be pointed at another one.
    """

    storages: list[torch.UntypedStorage]
    views: dict[int, list[torch.Tensor]]


def find_gpu_memory() -> GPUMemory:
    """All storages on CUDA devices: of living tensors, their gradients, and what backward needs.

    Returns:
        each storage once. Memory that another library or process owns is not among them, nor is
        a storage that shares its memory with such a one: it could not be given back.
    """
    found: dict[int, torch.UntypedStorage] = {}
    views: dict[int, list[torch.Tensor]] = defaultdict(list)
    survey = _Survey()
    for tensor, storage in survey.storages():
        if storage.device.type == "cuda" and storage.nbytes():
            found[storage._cdata] = storage
            if tensor is None or id(tensor) in survey.hidden or _has_living_accumulator(tensor):
                continue
            views[storage._cdata].append(tensor)
    foreign = [_range(storage) for storage in found.values() if not storage.resizable()]
    return GPUMemory(
        [
            storage
            for storage in found.values()
            if storage.resizable() and not _overlaps(_range(storage), foreign)
        ],
        views,
    )


def take_away(
    storage: torch.UntypedStorage, host: torch.UntypedStorage, views: Iterable[torch.Tensor]
) -> None:
    """Point tensors at the copy in host memory, and give the storage's memory back.

    Whoever else holds the storage (autograd, other C++ code) keeps it, empty, until
    ``bring_back``.

    Args:
        storage: on a GPU.
        host: its bytes.
        views: tensors that look at ``storage``; they become tensors of the host.
    """
    for tensor in views:
        _point(tensor, host)
    storage.resize_(0)


def bring_back(moved: MovedStorage, views: list[torch.Tensor]) -> None:
    """Put the bytes on the GPU again, and point tensors at them.

    May be called again after it failed at any point.

    Args:
        moved: whose bytes.
        views: tensors that look at its bytes in host memory now.
    """
    storage = moved.emptied()
    if storage is not None:
        storage.resize_(moved.host.nbytes())
        storage.copy_(moved.host, False)
    elif not views:
        return
    else:
        storage = _copy_to_gpu(moved.host, moved.device)
        moved.emptied = weakref.ref(storage)
    for tensor in views:
        _point(tensor, storage)


def _copy_to_gpu(host: Any, device: torch.device) -> torch.UntypedStorage:
    copy: torch.UntypedStorage = host.cuda(device)
    return copy


def copy_to_host(storage: Any) -> torch.UntypedStorage:
    """The same bytes in host memory.

    Args:
        storage: an untyped one, on a GPU.
    """
    copy: torch.UntypedStorage = storage.cpu()
    return copy


def views_in_host_memory() -> dict[int, list[torch.Tensor]]:
    """Storage of the host -> the living tensors that look at it."""
    views: dict[int, list[torch.Tensor]] = defaultdict(list)
    for tensor, storage in _Survey().storages():
        if tensor is not None and storage.device.type == "cpu":
            views[storage._cdata].append(tensor)
    return views


class _Survey:
    """What is alive, found at one moment.

    ``hidden`` are tensors that no variable of the program holds (their ``id``): those inside a
    sparse tensor, the bases of views, what a graph keeps.
    """

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = living(torch.Tensor)
        self.hidden = not_held(self.tensors)
        gradients = [gradient_of(tensor) for tensor in self.tensors]
        self.tensors += [gradient for gradient in gradients if gradient is not None]
        self.hidden -= {id(gradient) for gradient in gradients}

    def storages(self) -> Iterator[tuple[torch.Tensor | None, torch.UntypedStorage]]:
        """Every storage as often as it is found; with it a tensor that can look at another."""
        for storage in living(torch.UntypedStorage):
            yield None, storage
        saved = [tensor for _, tensor in saved_for_backward(self.tensors)]
        whole = {id(tensor): tensor for tensor in (*self.tensors, *saved)}
        for tensor in whole.values():
            if (storage := _storage_of(tensor)) is not None:
                yield (tensor if _can_point_elsewhere(tensor) else None), storage
            for part in _parts(tensor):
                if (storage := _storage_of(part)) is not None:
                    yield None, storage


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """What a tensor that is not plain is made of."""
    if type(tensor) is torch.Tensor and tensor.layout is torch.strided:
        return []
    with torch.no_grad():
        try:
            return [part for _, part in parts_of(tensor) if part is not tensor]
        except Exception:  # a subclass that refuses; its inner tensors are found by themselves
            return []


def _storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    try:
        return tensor.untyped_storage()
    except Exception:  # no storage (sparse, opaque), or a subclass that refuses
        return None


def _range(storage: torch.UntypedStorage) -> range:
    return range(storage.data_ptr(), storage.data_ptr() + storage.nbytes())


def _overlaps(one: range, others: list[range]) -> bool:
    return any(one.start < other.stop and other.start < one.stop for other in others)


def _can_point_elsewhere(tensor: Any) -> bool:
    """Whether ``tensor.data`` can be assigned and nothing but the storage changes."""
    if type(tensor).__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl:
        return False
    try:
        odd = (
            tensor.layout is not torch.strided
            or tensor.is_quantized
            or tensor.is_nested
            or tensor.is_conj()
            or tensor.is_neg()
            or any(getattr(tensor, "names", ()))  # gone in torch 2.13
        )
    except Exception:
        return False
    return not odd


def _has_living_accumulator(tensor: torch.Tensor) -> bool:
    """Whether a graph that waits for backward, or a hook of DDP, holds the leaf's accumulator.

    PyTorch gives a leaf a new accumulator when its device changes, and whoever held the old one
    would wait for it in vain. Asking for an accumulator makes one that is gone at once unless
    somebody else holds it: then a mark in its metadata is still there.
    """
    if not tensor.requires_grad or not tensor.is_leaf:
        return False
    _notes(tensor)[_MARK] = True
    return _notes(tensor).pop(_MARK, False)


def _notes(leaf: torch.Tensor) -> dict[str, bool]:
    accumulator: Any = torch.autograd.graph.get_gradient_edge(leaf).node
    notes: dict[str, bool] = accumulator.metadata
    return notes


def _point(tensor: torch.Tensor, storage: torch.UntypedStorage) -> None:
    """Make a tensor look at another storage, the same way as at its own."""
    with torch.no_grad(), torch.inference_mode(False):
        view = torch.empty(0, dtype=tensor.dtype, device=storage.device)
        view.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
        tensor.data = view
