"""The live tensors, and the storages under them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeGuard

import torch
from torch.autograd.graph import GradientEdge

from .live_objects import gradient_of, instances_of, unreferenced
from .memory import inner_parts
from .saved import grad_fn, saved_by_graphs

_MARK = "pytorch_memlab"


class LiveTensors:
    """The tensors and storages that are alive at one moment.

    ``hidden`` has the ``id`` of tensors that no variable of the program references: those inside
    a sparse tensor, the bases of views, tensors of a graph.
    """

    def __init__(self) -> None:
        found = instances_of(torch.Tensor, torch.UntypedStorage, GradientEdge)
        self._storages = [each for each in found if issubclass(type(each), torch.UntypedStorage)]
        self._edges = [each.node for each in found if type(each) is GradientEdge]
        self.tensors: list[torch.Tensor] = [
            each for each in found if issubclass(type(each), torch.Tensor)
        ]
        del found  # references are counted
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
    """True if a graph that waits for backward, or a hook of DDP, references the accumulator.

    PyTorch gives a leaf a new accumulator when its device changes, and the old one would never
    run. An accumulator without other references is gone at once, and with it the mark in its
    metadata.
    """
    if not tensor.requires_grad or not tensor.is_leaf:
        return False
    _notes(tensor)[_MARK] = True
    return _notes(tensor).pop(_MARK, False)


def _notes(leaf: torch.Tensor) -> dict[str, bool]:
    accumulator: Any = torch.autograd.graph.get_gradient_edge(leaf).node
    notes: dict[str, bool] = accumulator.metadata
    return notes
