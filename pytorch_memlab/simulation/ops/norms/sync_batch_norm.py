"""The ops of ``SyncBatchNorm``: statistics of one rank, of all ranks, and what follows from them.

The CPU has no kernels of them. Each reference serves the meta device too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from ...machine.simulated_gpu import SimulatedGPU
from ..memory_formats import acc_type, has_channels_last, suggest_memory_format
from ..op_call import OpCall
from ..registry import define
from .batch_norm import SOURCE, alloc_staging


def _stats(tensor: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    wide = tensor.to(acc_type(tensor.dtype))
    var, mean = torch.var_mean(wide, _but_channels(tensor), correction=0)
    return mean, (var + eps).rsqrt()


def _gather_stats_with_counts(
    _tensor: torch.Tensor,
    means: torch.Tensor,
    invstds: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    momentum: float,
    eps: float,
    counts: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    wide = acc_type(means.dtype)
    means, invstds = means.to(wide), invstds.to(wide)
    share = counts.to(wide).view(-1, 1)
    count = share.sum()
    mean = (means * share).sum(0) / count
    squares = (share * (invstds.pow(-2) - eps + (means - mean).square())).sum(0)
    if running_mean is not None:
        running_mean.lerp_(mean.to(running_mean.dtype), momentum)
    if running_var is not None:
        running_var.lerp_((squares / (count - 1)).to(running_var.dtype), momentum)
    return mean, (squares / count + eps).rsqrt()


def _elemt(
    tensor: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    _eps: float,
) -> torch.Tensor:
    result = (tensor - _broadcast(mean, tensor)) * _broadcast(invstd, tensor)
    if weight is not None:
        result = result * _broadcast(weight, tensor)
    if bias is not None:
        result = result + _broadcast(bias, tensor)
    empty = torch.empty_like(tensor, memory_format=suggest_memory_format(tensor))
    return empty.copy_(result)


def _backward_reduce(
    grad_output: torch.Tensor,
    tensor: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    weight: torch.Tensor | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[torch.Tensor | None, ...]:
    wide = grad_output.to(mean.dtype)
    sum_dy = wide.sum(_but_channels(tensor))
    sum_dy_xmu = (wide * (tensor - _broadcast(mean, tensor))).sum(_but_channels(tensor))
    if has_channels_last(grad_output) and has_channels_last(tensor):
        input_g = weight_g = bias_g = True
        if weight is None:
            return sum_dy, sum_dy_xmu, mean.new_empty(0), mean.new_empty(0)
    dtype = tensor.dtype if weight is None else weight.dtype
    return (
        sum_dy if input_g else None,
        sum_dy_xmu if input_g else None,
        (sum_dy_xmu * invstd).to(dtype) if weight_g else None,
        sum_dy.to(dtype, copy=True) if bias_g else None,
    )


def _backward_elemt(
    grad_output: torch.Tensor,
    tensor: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    weight: torch.Tensor | None,
    sum_dy: torch.Tensor,
    sum_dy_xmu: torch.Tensor,
    counts: torch.Tensor,
) -> torch.Tensor:
    count = counts.sum()
    scale = invstd if weight is None else invstd * weight
    slope = invstd.square() * (sum_dy_xmu / count)
    centred = tensor - _broadcast(mean, tensor)
    result = grad_output - _broadcast(sum_dy / count, tensor) - centred * _broadcast(slope, tensor)
    keeps_format = has_channels_last(grad_output)
    empty = torch.empty_like(
        tensor, memory_format=torch.preserve_format if keeps_format else torch.contiguous_format
    )
    return empty.copy_(result * _broadcast(scale, tensor))


def _but_channels(tensor: torch.Tensor) -> list[int]:
    return [dim for dim in range(tensor.dim()) if dim != 1]


def _broadcast(channels: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Values of channels, in a shape that a tensor broadcasts with."""
    return channels.view(1, -1, *[1] * (tensor.dim() - 2))


def _stats_memory(call: OpCall) -> None:
    call.alloc_outputs()
    if has_channels_last(call.args[0]):
        alloc_staging(call, call.args[0], 4)


def _backward_reduce_memory(call: OpCall) -> None:
    grad_output, tensor = call.args[:2]
    call.alloc_outputs()
    if has_channels_last(grad_output) and has_channels_last(tensor):
        alloc_staging(call, tensor, 2)


_OPS: Final[dict[str, tuple[Callable[..., Any], Callable[[OpCall], None] | None]]] = {
    "stats": (_stats, _stats_memory),
    "gather_stats_with_counts": (_gather_stats_with_counts, None),
    "elemt": (_elemt, None),
    "backward_reduce": (_backward_reduce, _backward_reduce_memory),
    "backward_elemt": (_backward_elemt, None),
}

for _name, (_reference, _memory) in _OPS.items():
    define(
        f"aten::batch_norm_{_name}",
        memory=_memory,
        source=SOURCE,
        reference=_reference,
        meta=_reference,
    )


def _gather_stats(
    gpu: SimulatedGPU,
    tensor: torch.Tensor,
    means: torch.Tensor,
    invstds: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    momentum: float,
    eps: float,
    count: int,
) -> Any:
    dtype = tensor.dtype if running_mean is None else running_mean.dtype
    counts = torch.ops.aten.full.default([means.shape[0]], count, dtype=dtype, device=gpu.device)
    return torch.ops.aten.batch_norm_gather_stats_with_counts.default(
        tensor, means, invstds, running_mean, running_var, momentum, eps, counts
    )


define("aten::batch_norm_gather_stats", composite=_gather_stats)
