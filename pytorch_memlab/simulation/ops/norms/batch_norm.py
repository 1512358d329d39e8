"""Batch norm: the choice between cuDNN and PyTorch, the kernels of both, and those of many ranks.

``aten/src/ATen/native/Normalization.cpp`` chooses. Of the ops of ``SyncBatchNorm`` the CPU has no
kernels.
"""

from __future__ import annotations

from math import ceil
from typing import Any, Final

import torch

from ...machine.simulated_gpu import SimulatedGPU
from ..core.memory_formats import (
    MAX_INT32,
    acc_type,
    can_view,
    has_channels_last,
    suggest_memory_format,
)
from ..core.op_call import CUDNN_WORKSPACES, FLOAT, OpCall
from ..core.reduction_workspace import last_power_of_2
from ..core.registry import define, estimated, op
from .parameter_types import refuse_mixed_statistics

Tensors = tuple[torch.Tensor, ...]

_SOURCE: Final = "aten/src/ATen/native/cuda/Normalization.cu, Normalization.cuh"

_MOST_SAMPLES: Final = {True: 880_801, False: 65_535}
"""Largest batch that cuDNN's kernels take, by whether it trains.

``_select_batch_norm_backend`` in ``aten/src/ATen/native/Normalization.cpp`` has both bounds.
"""

# ``ELEMENTS_PER_THREAD``, ``OPTIMAL_TILE_W``, ``MAX_BLOCK_SIZE`` and ``MAX_H_BLOCK`` in
# ``Normalization.cuh``, by which its ``flexible_launch_configs`` splits a reduction.
_PER_THREAD: Final = 16
_TILE: Final = 32
_BLOCK: Final = 512
_MOST_ROWS: Final = 128
_FEWEST_ROWS: Final = 8
"""Blocks below which a reduction over rows takes one: ``grid_y < 8`` there."""
_RUNNING: Final = (3, 4)
"""Positions of the running mean and variance, which the schemas do not mark as written."""

_aten: Final = torch.ops.aten


def _select_backend(_gpu: SimulatedGPU, *args: Any) -> Any:
    if not _use_cudnn(*args[:6]):
        return NotImplemented
    tensor, *of_channels = args[:5]
    results = _aten.cudnn_batch_norm.default(
        tensor.contiguous(memory_format=suggest_memory_format(tensor)),
        *(None if channel is None else channel.contiguous() for channel in of_channels),
        *args[5:8],
    )
    return (*results, 1)


def _use_cudnn(
    tensor: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor | None,
    var: torch.Tensor | None,
    training: bool,
) -> bool:
    """The conditions of ``_select_batch_norm_backend``."""
    if not torch._C._get_cudnn_enabled() or weight is None or bias is None:
        return False
    if torch.bfloat16 in (tensor.dtype, weight.dtype):
        return False
    if tensor.dtype == torch.float16 and weight.dtype != torch.float32:
        return False
    has_statistics = mean is not None and var is not None
    if not has_statistics and not (mean is None and var is None and training):
        return False
    return (
        tensor.dim() >= 3
        and tensor.shape[0] <= _MOST_SAMPLES[training]
        and 0 < tensor.numel() < MAX_INT32
    )


define("aten::batch_norm", writes=_RUNNING)
define("aten::_batch_norm_impl_index", cuda_dispatch=_select_backend, writes=_RUNNING)


def _native(
    tensor: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor | None,
    var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Tensors:
    """``native_batch_norm``; CUDA returns the statistics used when it does not train too."""
    dtype = acc_type(tensor.dtype)
    running = [_to(statistic, dtype) for statistic in (mean, var)]
    result, save_mean, save_invstd = _aten.native_batch_norm.default(
        tensor.to(dtype), _to(weight, dtype), _to(bias, dtype), *running, training, momentum, eps
    )
    if training:
        for kept, updated in zip((mean, var), running, strict=True):
            if kept is not None and kept is not updated:
                kept.copy_(updated)
    else:
        save_mean = running[0].clone()
        save_invstd = (running[1] + eps).rsqrt()
    return torch.empty_like(tensor).copy_(result), save_mean, save_invstd


def _native_backward(*args: Any) -> tuple[Any, ...]:
    """``native_batch_norm_backward`` in the dtype that CUDA accumulates in."""
    *tensors, training, eps, mask = args
    tensor, weight = tensors[1:3]
    results = _aten.native_batch_norm_backward.default(
        *(_to(operand, acc_type(tensor.dtype)) for operand in tensors), training, eps, mask
    )
    return in_dtypes(results, tensor, weight)


def in_dtypes(results: Any, tensor: torch.Tensor, weight: torch.Tensor | None) -> tuple[Any, ...]:
    """The gradients of an input, a weight and a bias, each in the dtype of what it belongs to."""
    likes = (tensor, *(tensor if weight is None else weight,) * 2)
    return tuple(_to(result, like.dtype) for result, like in zip(results, likes, strict=True))


def _to(tensor: torch.Tensor | None, dtype: torch.dtype) -> Any:
    return None if tensor is None else tensor.to(dtype)


def _native_without_statistics(
    tensor: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Tensors:
    return _native(tensor, weight, bias, None, None, training, momentum, eps)


@op("aten::native_batch_norm", source=_SOURCE, values=_native, writes=_RUNNING)
@op("aten::_native_batch_norm_legit", source=_SOURCE, values=_native)
@op("aten::_native_batch_norm_legit.no_stats", source=_SOURCE, values=_native_without_statistics)
def _statistics_memory(call: OpCall) -> None:
    """``batch_norm_stats``, which always trains, has no argument that says so."""
    tensor = call.args[0]
    call.alloc_outputs()
    if call.argument("training") is not False and has_channels_last(tensor):
        _alloc_staging(call, tensor, 4)


def _laid_out_as_input(args: tuple[Any, ...], result: tuple[Any, ...]) -> tuple[Any, ...]:
    """PyTorch's meta kernel takes the strides of the gradient of the output."""
    grad_input, *others = result
    tensor = args[1]
    wanted = torch.contiguous_format
    if has_channels_last(tensor):
        wanted = suggest_memory_format(tensor)
    return None if grad_input is None else grad_input.contiguous(memory_format=wanted), *others


@op(
    "aten::native_batch_norm_backward",
    source=_SOURCE,
    reference=_native_backward,
    corrects_meta=_laid_out_as_input,
)
def _native_backward_memory(call: OpCall) -> None:
    """Sums over each channel come before the gradients that need them."""
    grad_output, tensor = call.args[:2]
    mask = call.args[9]
    grad_input, grad_weight, grad_bias = call.result
    if mask[0] and not has_channels_last(tensor):
        if call.args[7] or mask[1] or mask[2]:
            refuse_mixed_statistics(
                tensor,
                weight=call.args[2],
                running_mean=call.args[3],
                running_var=call.args[4],
            )
        call.alloc_outputs()
        if not can_view(grad_output, (*grad_output.shape[:2], -1)):
            call.alloc_copy(grad_output)
        return
    if call.args[7] or mask[1] or mask[2]:
        is_staged = has_channels_last(tensor) and has_channels_last(grad_output)
        if is_staged or mask[0]:
            call.alloc_temps([tensor.shape[1] * call.args[5].element_size()] * 2)  # sums
        call.alloc_outputs(grad_weight, grad_bias)
        if is_staged:
            with call.scope():
                _alloc_staging(call, tensor, 2)
    call.alloc_outputs(grad_input)


def _alloc_staging(call: OpCall, tensor: torch.Tensor, values: int) -> None:
    """Blocks of threads that share a channel stage partial sums, and count themselves."""
    channels = tensor.shape[1]
    rows, columns = staging_rows(tensor.numel() // channels, channels)
    if rows > 1:
        call.alloc_temp(values * channels * rows * acc_type(tensor.dtype).itemsize)
        call.alloc_temp(columns * 4)


def staging_rows(reduced: int, channels: int) -> tuple[int, int]:
    """Blocks of threads for a channel of so many elements, and blocks for all channels.

    >>> staging_rows(64, 10), staging_rows(100_000, 64)
    ((1, 2), (128, 2))
    """
    # The rule is that of ``flexible_launch_configs``, ``native/cuda/Normalization.cuh``.
    width = min(last_power_of_2(channels), _TILE)
    height = min(last_power_of_2(ceil(reduced / _PER_THREAD)), _BLOCK // width)
    if width * height != _BLOCK:
        width = min(last_power_of_2(channels), _BLOCK // height)
    rows = min(ceil(reduced / (height * _PER_THREAD)), _MOST_ROWS)
    return (1 if rows < _FEWEST_ROWS else rows), ceil(channels / width)


_CUDNN: Final = "aten/src/ATen/native/cudnn/BatchNorm.cpp"


def _cudnn_forward(*args: Any) -> Tensors:
    tensor, weight, training = args[0], args[1], args[5]
    result, *saved = _native(*args)
    if not training:
        saved = [weight.new_empty(0) for _mean_and_invstd in range(2)]
    # The reserve space: an estimate, as only cuDNN tells its size; without an activation fused
    # into the op there is nothing to keep.
    reserve = tensor.new_empty(0, dtype=torch.uint8)
    result = result.contiguous(memory_format=suggest_memory_format(tensor))
    return result, *(statistic.to(weight.dtype) for statistic in saved), reserve


@estimated("aten::cudnn_batch_norm", source=_CUDNN, values=_cudnn_forward, writes=_RUNNING)
def _cudnn_memory(call: OpCall) -> None:
    if call.argument("training"):
        call.alloc_outputs()
        _leave_out_workspace(call)


def _cudnn_backward(
    tensor: torch.Tensor, grad_output: torch.Tensor, weight: torch.Tensor, *others: Any
) -> Tensors:
    args = (grad_output, tensor, weight, *others[:4], True, others[4], [True] * 3)
    grad_input, *of_weights = _native_backward(*args)
    grad_input = grad_input.contiguous(memory_format=suggest_memory_format(tensor))
    return grad_input, *of_weights


@estimated("aten::cudnn_batch_norm_backward", source=_CUDNN, values=_cudnn_backward)
def _cudnn_backward_memory(call: OpCall) -> None:
    tensor, grad_output = call.args[:2]
    call.alloc_contiguous(grad_output, memory_format=suggest_memory_format(tensor))
    call.alloc_outputs()
    _leave_out_workspace(call)


def _leave_out_workspace(call: OpCall) -> None:
    """Sums of parts of the input, which are no more than its elements, in single precision."""
    call.leave_out(CUDNN_WORKSPACES, FLOAT * call.args[0].numel())


def _with_update(_gpu: SimulatedGPU, *args: Any) -> Tensors:
    """``_batch_norm_with_update_cuda``."""
    args = (*args[:5], True, *args[5:])
    if _use_cudnn(*args[:6]):
        return tuple(_aten.cudnn_batch_norm.default(*args))
    reserve = args[0].new_empty(0, dtype=torch.uint8)
    return (*_aten.native_batch_norm.default(*args), reserve)


def _with_update_into(_gpu: SimulatedGPU, *args: Any, **outs: torch.Tensor) -> Tensors:
    """``_batch_norm_with_update_cuda_out``."""
    args = (*args[:5], True, *args[5:])
    if _use_cudnn(*args[:6]):
        numbered = {f"out{number}": out for number, out in enumerate(outs.values())}
        return tuple(_aten.cudnn_batch_norm.out(*args, **numbered))
    reserve = outs.pop("reserve")
    return (*_aten.native_batch_norm.out(*args, **outs), reserve)


def _backward_of_update(_gpu: SimulatedGPU, *args: Any) -> Tensors:
    """``_new_batch_norm_backward_cuda``, which asks as if there were a bias."""
    grad_output, tensor, weight, *of_channels, update, eps, mask, reserve = args
    mean, var = of_channels[:2]
    if _use_cudnn(tensor, weight, weight, mean, var, training=True):
        inputs = (tensor, grad_output, weight, *of_channels, eps, reserve)
        return tuple(_aten.cudnn_batch_norm_backward.default(*inputs))
    inputs = (grad_output, tensor, weight, *of_channels, update, eps, mask)
    return tuple(_aten.native_batch_norm_backward.default(*inputs))


define("aten::_batch_norm_with_update", composite=_with_update)
define("aten::_batch_norm_with_update.out", composite=_with_update_into)
define("aten::batch_norm_backward", composite=_backward_of_update)


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


def _elementwise(
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


def _backward_reduce_memory(call: OpCall) -> None:
    grad_output, tensor = call.args[:2]
    call.alloc_outputs()
    if has_channels_last(grad_output) and has_channels_last(tensor):
        _alloc_staging(call, tensor, 2)


for _name, _values, _memory in (
    ("stats", _stats, _statistics_memory),
    ("gather_stats_with_counts", _gather_stats_with_counts, None),
    ("elemt", _elementwise, None),
    ("backward_reduce", _backward_reduce, _backward_reduce_memory),
    ("backward_elemt", _backward_elemt, None),
):
    define(f"aten::batch_norm_{_name}", memory=_memory, source=_SOURCE, values=_values)


def _gather_stats(gpu: SimulatedGPU, *args: Any) -> Any:
    *inputs, count = args
    tensor, means, _, running_mean = inputs[:4]
    dtype = tensor.dtype if running_mean is None else running_mean.dtype
    counts = _aten.full.default([means.shape[0]], count, dtype=dtype, device=gpu.device)
    return _aten.batch_norm_gather_stats_with_counts.default(*inputs, counts)


define("aten::batch_norm_gather_stats", composite=_gather_stats)
