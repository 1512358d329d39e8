"""The objects that a scan found, kept without keeping them alive until they are described."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..tensors.living import living
from .rows import Living

_CLASSES = (torch.Tensor, torch.optim.Optimizer, torch.nn.Module, torch._C._FunctionBase)


class Collection:
    """Weak references to living tensors, and to what tells of them."""

    def __init__(self) -> None:
        self._tensors: list[weakref.ref[torch.Tensor]] = []
        self._holders: list[weakref.ref[Any]] = []

    def fill(self) -> list[torch.optim.Optimizer]:
        """Find everything anew."""
        self._tensors, self._holders = [], []
        optimizers = []
        for found in living(*_CLASSES):
            if issubclass(type(found), torch.Tensor):
                self._tensors.append(weakref.ref(found))
            elif issubclass(type(found), torch.optim.Optimizer):
                optimizers.append(found)
            else:
                self._holders.append(weakref.ref(found))
        return optimizers

    def take(self) -> Living:
        """The objects that are still alive; the collection is empty then."""
        tensors, holders = _alive(self._tensors), _alive(self._holders)
        _hold(tensors)
        self._tensors, self._holders = [], []
        modules = [each for each in holders if issubclass(type(each), torch.nn.Module)]
        nodes = [each for each in holders if not issubclass(type(each), torch.nn.Module)]
        return Living(tensors, modules, nodes)


def _hold(tensors: list[torch.Tensor]) -> None:
    """Make Python's references count for tensors that only C++ held until now."""
    base: Any = torch._C.TensorBase
    for index in range(len(tensors)):  # a variable would make the last one the program's
        base._fix_weakref(tensors[index])


def _alive(references: Iterable[Callable[[], Any]]) -> list[Any]:
    # Alone in a function: a variable left over would make the last tensor one of the program's.
    return [item for reference in references if (item := reference()) is not None]
