"""Ops that PyTorch has no meta kernel of: the shapes of what they return on CUDA."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def like_second(
    _gradient: torch.Tensor, tensor: torch.Tensor, *_others: Any, **_options: Any
) -> torch.Tensor:
    """As large as the second argument, contiguous: as gradients of losses."""
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


SHAPES: Final[Mapping[str, Callable[..., Any]]] = {
    "multi_margin_loss_backward": like_second,
    "multilabel_margin_loss_backward": like_second,
    "fractional_max_pool3d_backward": like_second,
}
"""By the op's name: a function of its arguments on the meta device."""
