"""The arguments of an op, and the tensors among them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeGuard

import torch

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


def is_mask(index: object) -> TypeGuard[torch.Tensor]:
    """True if an index is a mask, not a tensor of positions."""
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)


def tensors_in(args: Args, kwargs: Kwargs) -> Iterator[torch.Tensor]:
    """All tensors among an op's arguments, those in lists too."""
    return iter(list_of_tensors(args, kwargs))


def list_of_tensors(args: Args, kwargs: Kwargs) -> list[torch.Tensor]:
    """The same as a list. Every op comes here."""
    tensors = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        kind = type(value)
        if kind is torch.Tensor:
            tensors.append(value)
        elif kind in _NO_TENSORS:
            continue
        elif isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            tensors += [item for item in value if isinstance(item, torch.Tensor)]
    return tensors


_NO_TENSORS = frozenset({int, float, bool, type(None), str, torch.dtype, torch.device})
