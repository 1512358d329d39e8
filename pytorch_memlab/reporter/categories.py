"""What a tensor is to the program: a parameter, a buffer, state of an optimizer, or another."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from .names import states_of, tensors_in
from .records import BUFFERS, OPTIMIZER_STATE, OTHERS, PARAMETERS


class Categories:
    """Categories of tensors at one moment, by who holds them.

    Args:
        modules: whose parameters and buffers are known as such.
        optimizers: whose state is, and whose parameters.
    """

    def __init__(
        self, modules: Iterable[torch.nn.Module], optimizers: Iterable[torch.optim.Optimizer]
    ) -> None:
        self._known: dict[int, str] = {}
        for optimizer in optimizers:
            for _, state in states_of(optimizer):
                self._add((tensor for _, tensor in tensors_in(state)), OPTIMIZER_STATE)
            self._add((tensor for _, tensor in tensors_in(_parameters_of(optimizer))), PARAMETERS)
        for module in modules:
            own = vars(module)
            self._add((own.get("_buffers") or {}).values(), BUFFERS)
            self._add((own.get("_parameters") or {}).values(), PARAMETERS)

    def of(self, tensor: torch.Tensor) -> str:
        """The category of a tensor that is no gradient, and not saved for backward alone."""
        if issubclass(type(tensor), torch.nn.Parameter):
            return PARAMETERS
        return self._known.get(id(tensor), OTHERS)

    def _add(self, tensors: Iterable[torch.Tensor | None], category: str) -> None:
        for tensor in tensors:
            if tensor is not None:
                self._known[id(tensor)] = category


def _parameters_of(optimizer: torch.optim.Optimizer) -> list[Any]:
    """What an optimizer of any class has in its groups, none if it cannot tell."""
    try:
        return [group.get("params") for group in optimizer.param_groups]
    except Exception:  # a property of a class of the program may raise anything
        return []
