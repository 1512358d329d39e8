"""The category of a tensor: a parameter, a buffer, state of an optimizer, or another."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ..tensors.optimizers import parameters_of, states_of, tensors_in
from .category import Category


class TensorCategories:
    """Categories of tensors at one moment, by who holds them."""

    def __init__(
        self, modules: Iterable[torch.nn.Module], optimizers: Iterable[torch.optim.Optimizer]
    ) -> None:
        self._known: dict[int, Category] = {}
        for optimizer in optimizers:
            for _, state in states_of(optimizer):
                self._add((tensor for _, tensor in tensors_in(state)), Category.OPTIMIZER_STATE)
            self._add(
                (tensor for _, tensor in tensors_in(parameters_of(optimizer))), Category.PARAMETERS
            )
        for module in modules:
            own = vars(module)
            self._add((own.get("_buffers") or {}).values(), Category.BUFFERS)
            self._add((own.get("_parameters") or {}).values(), Category.PARAMETERS)

    def of(self, tensor: torch.Tensor) -> Category:
        """The category of a tensor that is no gradient, and not saved for backward alone."""
        if issubclass(type(tensor), torch.nn.Parameter):
            return Category.PARAMETERS
        return self._known.get(id(tensor), Category.OTHERS)

    def _add(self, tensors: Iterable[torch.Tensor | None], category: Category) -> None:
        for tensor in tensors:
            if tensor is not None:
                self._known[id(tensor)] = category
