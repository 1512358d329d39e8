"""Moving storages out of GPU memory and back, under the tensors that look at them."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch.autograd.graph import GradientEdge

from .live_objects import gradient_of, instances_of, unreferenced
from .memory import inner_parts
from .saved import grad_fn, saved_by_graphs

_MARK = "pytorch_memlab"


class LiveTensors:
    """The tensors and storages that are alive at one moment."""

    # ``hidden`` has the ``id`` of tensors that no variable of the program references: those inside
    # a sparse tensor, the bases of views, tensors of a graph.

    def __init__(self) -> None:
        objects = instances_of(torch.Tensor, torch.UntypedStorage, GradientEdge)
        self._storages = [item for item in objects if issubclass(type(item), torch.UntypedStorage)]
        self._edges = [item.node for item in objects if type(item) is GradientEdge]
        self.tensors: list[torch.Tensor] = [
            item for item in objects if issubclass(type(item), torch.Tensor)
        ]
        del objects  # references are counted
        self.hidden = unreferenced(self.tensors)
        gradients = [gradient_of(tensor) for tensor in self.tensors]
        self.tensors += [gradient for gradient in gradients if gradient is not None]
        self.hidden -= {id(gradient) for gradient in gradients}

    def is_movable(self, tensor: torch.Tensor | None) -> TypeGuard[torch.Tensor]:
        """True if a tensor may change its device: a variable references it, and no graph."""
        if tensor is None or id(tensor) in self.hidden:
            return False
        return not _has_living_accumulator(tensor)

    def storages(self) -> Iterator[tuple[torch.Tensor | None, torch.UntypedStorage]]:
        """Every storage as often as it is found; with it a tensor that can look at another."""
        for storage in self._storages:
            yield None, storage
        roots = [*map(grad_fn, self.tensors), *self._edges]
        saved = [tensor for _, tensor in saved_by_graphs(roots)]
        whole = {id(tensor): tensor for tensor in (*self.tensors, *saved)}
        for tensor in whole.values():
            if (storage := _storage_of(tensor)) is not None:
                yield (tensor if can_point_elsewhere(tensor) else None), storage
            for part in inner_parts(tensor):
                if (storage := _storage_of(part)) is not None:
                    yield None, storage


def _storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    try:
        return tensor.untyped_storage()
    except Exception:  # no storage (sparse, opaque), or a subclass that refuses
        return None


def can_point_elsewhere(tensor: Any) -> bool:
    """True if an assignment to ``tensor.data`` changes nothing but the storage."""
    if type(tensor).__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl:
        return False
    try:
        is_special = (
            tensor.layout is not torch.strided
            or tensor.is_quantized
            or tensor.is_nested
            or tensor.is_conj()
            or tensor.is_neg()
            or any(getattr(tensor, "names", ()))  # gone in torch 2.13
        )
    except Exception:
        return False
    return not is_special


def _has_living_accumulator(tensor: torch.Tensor) -> bool:
    """True if a graph that waits for backward, or a hook of DDP, references the accumulator."""
    # PyTorch gives a leaf a new accumulator when its device changes, and the old one would never
    # run. An accumulator without other references is gone at once, and with it the mark in its
    # metadata.
    if not tensor.requires_grad or not tensor.is_leaf:
        return False
    _notes(tensor)[_MARK] = True
    return _notes(tensor).pop(_MARK, False)


def _notes(leaf: torch.Tensor) -> dict[str, bool]:
    accumulator: Any = torch.autograd.graph.get_gradient_edge(leaf).node
    notes: dict[str, bool] = accumulator.metadata
    return notes


@dataclass(slots=True)
class MovedStorage:
    """A storage whose bytes are in host memory."""

    device: torch.device
    host: torch.UntypedStorage  # the bytes
    emptied: weakref.ref[torch.UntypedStorage]


Views = dict[int, list[torch.Tensor]]
"""The live tensors that look at a storage, by the number of the storage (``_cdata``)."""


def find_gpu_memory(device: torch.device | None = None) -> tuple[list[torch.UntypedStorage], Views]:
    """Storages on CUDA devices: of live tensors, their gradients, and what backward needs."""
    # With them come the tensors that look at them and may change their device.
    storages: dict[int, torch.UntypedStorage] = {}
    views: Views = defaultdict(list)
    live = LiveTensors()
    for tensor, storage in live.storages():
        if storage.device.type == "cuda":
            if storage.nbytes():
                storages[storage._cdata] = storage
            if live.is_movable(tensor):
                views[storage._cdata].append(tensor)
    foreign = [_range(storage) for storage in storages.values() if not storage.resizable()]
    own = [
        storage
        for storage in storages.values()
        if device in (None, storage.device)
        and storage.resizable()
        and not _overlaps(_range(storage), foreign)
    ]
    return sorted(own, key=lambda storage: storage.device.index), views


def move_to_host(
    storage: torch.UntypedStorage, host: torch.UntypedStorage, views: Iterable[torch.Tensor]
) -> None:
    """Point tensors at the copy in host memory, and give the storage's memory back."""
    # Autograd and other C++ code that reference the storage keep it, empty, until it has ``room``
    # again.
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


def views_in_host_memory() -> Views:
    views: Views = defaultdict(list)
    for tensor, storage in LiveTensors().storages():
        if tensor is not None and storage.device.type == "cpu":
            views[storage._cdata].append(tensor)
    return views


def view_bases(views: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors that some views are views of, as autograd knows it."""
    bases = {id(base): base for view in views if (base := view._base) is not None}
    return [base for base in bases.values() if can_point_elsewhere(base)]


def _range(storage: torch.UntypedStorage) -> range:
    return range(storage.data_ptr(), storage.data_ptr() + storage.nbytes())


def _overlaps(piece: range, others: list[range]) -> bool:
    return any(piece.start < other.stop and other.start < piece.stop for other in others)


def point(tensor: torch.Tensor, storage: torch.UntypedStorage) -> None:
    """Make a tensor look at another storage, the same way as at its own."""
    subclass = torch._C.DisableTorchFunctionSubclass()
    with torch.no_grad(), torch.inference_mode(False), subclass:
        view = torch.empty(0, dtype=tensor.dtype, device=storage.device)
        view.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
        tensor.data = view
