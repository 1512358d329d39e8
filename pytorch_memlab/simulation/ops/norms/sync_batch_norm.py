"""``SyncBatchNorm``'s ops: statistics of one rank, of all ranks, and what follows from them.

The host has no kernels of them. Shapes and dtypes of results are those of
``aten/src/ATen/native/cuda/Normalization.cu`` and ``Normalization.cuh``. Each function serves
tensors of the meta device as well.
"""

from __future__ import annotations

import torch

from ..memory_formats import acc_type, has_channels_last, suggest_memory_format


def statistics(tensor: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """``batch_norm_stats``."""
    wide = tensor.to(acc_type(tensor.dtype))
    var, mean = torch.var_mean(wide, _but_channels(tensor), correction=0)
    return mean, (var + eps).rsqrt()


def of_all_ranks(
    tensor: torch.Tensor,
    means: torch.Tensor,
    deviations: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    momentum: float,
    eps: float,
    counts: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``batch_norm_gather_stats_with_counts``."""
    del tensor
    wide = acc_type(means.dtype)
    means, deviations = means.to(wide), deviations.to(wide)
    share = counts.to(wide).view(-1, 1)
    count = share.sum()
    mean = (means * share).sum(0) / count
    squares = (share * (deviations.pow(-2) - eps + (means - mean).square())).sum(0)
    if running_mean is not None:
        running_mean.lerp_(mean.to(running_mean.dtype), momentum)
    if running_var is not None:
        running_var.lerp_((squares / (count - 1)).to(running_var.dtype), momentum)
    return mean, (squares / count + eps).rsqrt()


def normalize(
    tensor: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    deviation: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """``batch_norm_elemt``."""
    del eps
    result = (tensor - _beside(mean, tensor)) * _beside(deviation, tensor)
    if weight is not None:
        result = result * _beside(weight, tensor)
    if bias is not None:
        result = result + _beside(bias, tensor)
    empty = torch.empty_like(tensor, memory_format=suggest_memory_format(tensor))
    return empty.copy_(result)


def sums(
    gradient: torch.Tensor,
    tensor: torch.Tensor,
    mean: torch.Tensor,
    deviation: torch.Tensor,
    weight: torch.Tensor | None,
    wants_tensor: bool,
    wants_weight: bool,
    wants_bias: bool,
) -> tuple[torch.Tensor | None, ...]:
    """``batch_norm_backward_reduce``."""
    wide = gradient.to(mean.dtype)
    total = wide.sum(_but_channels(tensor))
    product = (wide * (tensor - _beside(mean, tensor))).sum(_but_channels(tensor))
    if has_channels_last(gradient) and has_channels_last(tensor):
        wants_tensor = wants_weight = wants_bias = True
        if weight is None:
            return total, product, mean.new_empty(0), mean.new_empty(0)
    dtype = tensor.dtype if weight is None else weight.dtype
    return (
        total if wants_tensor else None,
        product if wants_tensor else None,
        (product * deviation).to(dtype) if wants_weight else None,
        total.to(dtype, copy=True) if wants_bias else None,
    )


def gradient_of_tensor(
    gradient: torch.Tensor,
    tensor: torch.Tensor,
    mean: torch.Tensor,
    deviation: torch.Tensor,
    weight: torch.Tensor | None,
    total: torch.Tensor,
    product: torch.Tensor,
    counts: torch.Tensor,
) -> torch.Tensor:
    """``batch_norm_backward_elemt``."""
    count = counts.sum()
    scale = deviation if weight is None else deviation * weight
    slope = deviation.square() * (product / count)
    centred = tensor - _beside(mean, tensor)
    result = gradient - _beside(total / count, tensor) - centred * _beside(slope, tensor)
    keeps_format = has_channels_last(gradient)
    empty = torch.empty_like(
        tensor, memory_format=torch.preserve_format if keeps_format else torch.contiguous_format
    )
    return empty.copy_(result * _beside(scale, tensor))


def _but_channels(tensor: torch.Tensor) -> list[int]:
    return [dim for dim in range(tensor.dim()) if dim != 1]


def _beside(channels: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Values of channels, in the shape that they have beside a tensor."""
    return channels.view(1, -1, *[1] * (tensor.dim() - 2))
