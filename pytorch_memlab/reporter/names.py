"""Names of tensors, remembered without keeping a tensor alive."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary


class TensorNames:
    """What each tensor is called: by its model, by its optimizer, else by a number.

    Models and optimizers are remembered weakly and asked anew each time, so tensors that they
    make or replace later have names too.
    """

    def __init__(self) -> None:
        self._names: Any = WeakTensorKeyDictionary()
        self._models: list[weakref.ref[torch.nn.Module]] = []
        self._optimizers: list[weakref.ref[torch.optim.Optimizer]] = []
        self._count = 0

    def add_model(self, model: torch.nn.Module) -> None:
        """Name the parameters and buffers of a model.

        Args:
            model: may change later.
        """
        self._models.append(weakref.ref(model))
        for _ in self._name_model(model):
            pass

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Name the state of an optimizer, such as ``Adam.weight.exp_avg``.

        Args:
            optimizer: may make its state later.
        """
        self._optimizers = [known for known in self._optimizers if known() is not None]
        if all(known() is not optimizer for known in self._optimizers):
            self._optimizers.append(weakref.ref(optimizer))

    def known(self) -> list[torch.Tensor]:
        """Every tensor of the models and optimizers, in their order, named."""
        tensors = {
            id(tensor): tensor
            for model in _alive(self._models)
            for tensor in self._name_model(model)
        }
        for optimizer in _alive(self._optimizers):
            for name, tensor in self._state_of(optimizer):
                if id(tensor) not in tensors:
                    tensors[id(tensor)] = tensor
                    self._names[tensor] = name
        return list(tensors.values())

    def of(self, tensor: torch.Tensor) -> str:
        """The name of a tensor.

        Args:
            tensor: one without a name gets its class and the next number, and keeps it.
        """
        name: str | None = self._names.get(tensor)
        if name is None:
            name = f"{type(tensor).__name__}{self._count}"
            self._names[tensor] = name
            self._count += 1
        return name

    def _name_model(self, model: torch.nn.Module) -> Iterator[torch.Tensor]:
        for named in (model.named_parameters, model.named_buffers):
            for name, tensor in named():
                self._names[tensor] = name
                yield tensor

    def _state_of(self, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
        kind = type(optimizer).__name__
        try:
            states = list(optimizer.state.items())
        except Exception:  # a class of optimizers that has no state, or not of this shape
            return
        for parameter, state in states:
            for path, tensor in _tensors_in(state):
                owner = self.of(parameter) if isinstance(parameter, torch.Tensor) else parameter
                yield f"{kind}.{owner}{path}", tensor


def _alive(references: Iterable[weakref.ref[Any]]) -> list[Any]:
    return [item for reference in references if (item := reference()) is not None]


def _tensors_in(state: object, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(state, torch.Tensor):
        yield path, state
    elif isinstance(state, Mapping):
        for key, value in state.items():
            yield from _tensors_in(value, f"{path}.{key}")
    elif isinstance(state, (list, tuple)):
        for index, value in enumerate(state):
            yield from _tensors_in(value, f"{path}.{index}")
