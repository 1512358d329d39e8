"""cuDNN's batch norm, computed on the host: ``aten/src/ATen/native/cudnn/BatchNorm.cpp``."""

from __future__ import annotations

from typing import Any

import torch

from ..memory_formats import suggest_memory_format
from .batch_norm import native, native_backward

Tensors = tuple[torch.Tensor, ...]


def forward(
    tensor: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    mean: torch.Tensor | None,
    var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Tensors:
    """``cudnn_batch_norm`` computed on the host."""
    results = shapes(tensor, weight, bias, mean, var, training)
    values = native(tensor, weight, bias, mean, var, training, momentum, eps)
    for result, value in zip(results, values, strict=False):
        if result.numel():
            result.copy_(value)
    return results


def shapes(
    tensor: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    mean: torch.Tensor | None,
    var: torch.Tensor | None,
    training: bool,
    *_arguments: Any,
) -> Tensors:
    """Shapes of what ``forward`` returns.

    ``ExReserveSpaceSize`` knows.
    """
    channels = tensor.shape[1] if training else 0
    return (
        torch.empty_like(tensor, memory_format=suggest_memory_format(tensor)),
        weight.new_empty(channels),
        weight.new_empty(channels),
        tensor.new_empty(0, dtype=torch.uint8),
    )


def backward(
    tensor: torch.Tensor,
    gradient: torch.Tensor,
    weight: torch.Tensor,
    mean: torch.Tensor | None,
    var: torch.Tensor | None,
    used_mean: torch.Tensor | None,
    used_deviation: torch.Tensor | None,
    eps: float,
    reserve: torch.Tensor,
) -> Tensors:
    """``cudnn_batch_norm_backward`` computed on the host."""
    results = backward_shapes(tensor, gradient, weight)
    values = native_backward(
        gradient, tensor, weight, mean, var, used_mean, used_deviation, True, eps, [True] * 3
    )
    for result, value in zip(results, values, strict=True):
        if value is not None:
            result.copy_(value)
    return results


def backward_shapes(
    tensor: torch.Tensor, gradient: torch.Tensor, weight: torch.Tensor, *_arguments: Any
) -> Tensors:
    """Shapes of what ``backward`` returns."""
    like = torch.empty_like(tensor, memory_format=suggest_memory_format(tensor))
    return like, torch.empty_like(weight), torch.empty_like(weight)
