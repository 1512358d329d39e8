"""The objects that a scan found, kept without keeping them alive until they are described."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from ..tensors.live_objects import LiveObjects, alive, live_objects


class Collection:
    """Weak references to live objects."""

    def __init__(self) -> None:
        self._references: list[list[weakref.ref[Any]]] = [[] for _ in LiveObjects._fields]

    def fill(self) -> list[torch.optim.Optimizer]:
        """Scan again, and return the optimizers."""
        live = live_objects()
        self._references = [list(map(weakref.ref, found)) for found in live]
        return live.optimizers

    def take(self) -> LiveObjects:
        """The objects that are still alive; the collection is empty then."""
        live = LiveObjects(*map(alive, self._references))
        _reference_from_python(live.tensors)
        self._references = [[] for _ in LiveObjects._fields]
        return live


def _reference_from_python(tensors: list[torch.Tensor]) -> None:
    """Make Python's references count for tensors that only C++ referenced until now."""
    base: Any = torch._C.TensorBase
    for index in range(len(tensors)):  # a variable would reference the last one
        base._fix_weakref(tensors[index])
