"""Names of tensors, remembered without keeping a tensor alive."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from itertools import count
from typing import NamedTuple

import torch

from ..tensors.live_objects import alive, states_of, tensors_in
from .records import BUFFERS, OPTIMIZER_STATE, PARAMETERS

_numbers = count(1)


class Named(NamedTuple):
    """A tensor with a name, and the category that follows from where it was found."""

    tensor: torch.Tensor
    name: str
    category: str


class _Remembered:
    """The name of a tensor, for as long as it lives."""

    __slots__ = ("name", "number", "reference")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.reference = weakref.ref(tensor)
        self.number = next(_numbers)
        self.name: str | None = None


class TensorNames:
    """Names of tensors: by model, by optimizer, or else by a number.

    Models and optimizers are remembered weakly and asked each time, so tensors that they
    make or replace later have names too.
    """

    def __init__(self) -> None:
        self._remembered: dict[int, _Remembered] = {}
        self._models: list[weakref.ref[torch.nn.Module]] = []
        self._optimizers: list[weakref.ref[torch.optim.Optimizer]] = []
        self._count = 0

    def add_model(self, model: torch.nn.Module) -> None:
        self._models.append(weakref.ref(model))
        self.now()

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Name the state of an optimizer, such as ``Adam.weight.exp_avg``."""
        self._optimizers = [known for known in self._optimizers if known() is not None]
        if all(known() is not optimizer for known in self._optimizers):
            self._optimizers.append(weakref.ref(optimizer))

    def now(self, variables: Mapping[int, str] | None = None) -> NamesNow:
        known = self._remembered.items()
        self._remembered = {key: each for key, each in known if each.reference() is not None}
        return NamesNow(self, variables or {})

    def models(self) -> list[torch.nn.Module]:
        return alive(self._models)

    def optimizers(self) -> list[torch.optim.Optimizer]:
        return alive(self._optimizers)

    def remember(self, tensor: torch.Tensor, name: str) -> None:
        """Call a tensor by this name, also when its model is gone."""
        self._of(tensor).name = name

    def identity(self, tensor: torch.Tensor) -> int:
        """A number that this tensor alone has, of all reporters' tensors, and keeps."""
        return self._of(tensor).number

    def numbered(self, tensor: torch.Tensor) -> str:
        """The name that a tensor had before; without one it gets its class and the next number."""
        known = self._of(tensor)
        if known.name is None:
            known.name = f"{type(tensor).__name__}{self._count}"
            self._count += 1
        return known.name

    def _of(self, tensor: torch.Tensor) -> _Remembered:
        known = self._remembered.get(id(tensor))
        if known is None or known.reference() is not tensor:  # another one had this address
            known = self._remembered[id(tensor)] = _Remembered(tensor)
        return known


class NamesNow:
    """The names at one moment: while it lives, so do the named tensors."""

    def __init__(self, names: TensorNames, variables: Mapping[int, str]) -> None:
        self._names = names
        self._variables = variables
        self._places = {key: place for place, key in enumerate(variables)}
        self._known: dict[int, Named] = {}
        for model in names.models():
            for named in tensors_of_model(model):
                self._add(named)
        for optimizer in names.optimizers():
            for named in self._state_of(optimizer):
                self._add(named)

    def known(self) -> list[Named]:
        """Every tensor of the models and optimizers, in their order."""
        return list(self._known.values())

    def is_variable(self, tensor: torch.Tensor) -> bool:
        return id(tensor) in self._variables

    def place(self, tensor: torch.Tensor) -> int:
        """The position among all variables of the one that leads to a tensor."""
        return self._places[id(tensor)]

    def identity(self, tensor: torch.Tensor) -> int:
        return self._names.identity(tensor)

    def of(self, tensor: torch.Tensor) -> str:
        key = id(tensor)
        if key in self._known:
            return self._known[key].name
        return self._variables.get(key) or self._names.numbered(tensor)

    def _add(self, named: Named) -> None:
        if id(named.tensor) not in self._known:
            self._known[id(named.tensor)] = named
            self._names.remember(named.tensor, named.name)

    def _state_of(self, optimizer: torch.optim.Optimizer) -> Iterator[Named]:
        kind = type(optimizer).__name__
        for parameter, state in states_of(optimizer):
            for path, tensor in tensors_in(state):
                owner = self.of(parameter) if isinstance(parameter, torch.Tensor) else parameter
                yield Named(tensor, f"{kind}.{owner}{path}", OPTIMIZER_STATE)


def tensors_of_model(model: torch.nn.Module) -> Iterator[Named]:
    try:
        parameters, buffers = list(model.named_parameters()), list(model.named_buffers())
    except Exception:
        return
    for name, parameter in parameters:
        yield Named(parameter, name, PARAMETERS)
    for name, buffer in buffers:
        yield Named(buffer, name, BUFFERS)
