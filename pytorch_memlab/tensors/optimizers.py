"""The tensors of optimizers of any class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch

_DEEPEST: Final = 8


def parameters_of(optimizer: torch.optim.Optimizer) -> list[Any]:
    """The parameters in the groups of an optimizer of any class, none if it cannot tell."""
    try:
        return [group.get("params") for group in optimizer.param_groups]
    except Exception:  # a property of a class of the program may raise anything
        return []


def states_of(optimizer: torch.optim.Optimizer) -> list[tuple[Any, Any]]:
    """The state of an optimizer for each parameter."""
    try:
        return list(optimizer.state.items())
    except Exception:
        return []


def tensors_in(state: object, path: str = "", depth: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in nested dicts, lists and tuples, each with its path: ``.exp_avg``, ``.0``."""
    kind = type(state)
    if issubclass(kind, torch.Tensor):
        yield path, state  # type: ignore[misc]
    elif depth == _DEEPEST:
        return
    elif issubclass(kind, Mapping):
        for key, value in state.items():  # type: ignore[attr-defined]
            yield from tensors_in(value, f"{path}.{key}", depth + 1)
    elif issubclass(kind, (list, tuple)):
        for index, value in enumerate(state):  # type: ignore[arg-type]
            yield from tensors_in(value, f"{path}.{index}", depth + 1)
