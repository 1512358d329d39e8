"""Group norm: contiguous on CUDA, in the input's memory format on a CPU.

``aten/src/ATen/native/group_norm.cpp`` chooses the format by the device, for both passes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    Tensors = tuple[torch.Tensor | None, ...]


def forward(tensor: torch.Tensor, *arguments: Any) -> Tensors:
    """``native_group_norm`` of a contiguous copy, on the host or the meta device."""
    results: Tensors = torch.ops.aten.native_group_norm.default(tensor.contiguous(), *arguments)
    return results


def backward(gradient: torch.Tensor, tensor: torch.Tensor, *arguments: Any) -> Tensors:
    """``native_group_norm_backward`` of contiguous copies, on the host."""
    results: Tensors = torch.ops.aten.native_group_norm_backward.default(
        gradient.contiguous(), tensor.contiguous(), *arguments
    )
    return results


def backward_shapes(
    gradient: torch.Tensor,
    tensor: torch.Tensor,
    mean: torch.Tensor,
    deviation: torch.Tensor,
    weight: torch.Tensor | None,
    batch: int,
    channels: int,
    inner: int,
    count: int,
    mask: list[bool],
) -> Tensors:
    """Shapes of what ``backward`` returns."""
    like = tensor if weight is None else weight
    return (
        tensor.new_empty(tensor.shape) if mask[0] else None,
        like.new_empty(channels) if mask[1] else None,
        like.new_empty(channels) if mask[2] else None,
    )
