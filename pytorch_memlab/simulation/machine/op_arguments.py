"""The arguments of an op, and the tensors among them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


def tensors_in(args: Args, kwargs: Kwargs) -> Iterator[torch.Tensor]:
    """All tensors among an op's arguments, those in lists too."""
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            for item in value:
                if isinstance(item, torch.Tensor):
                    yield item
