"""Losses and distances: the loss of each element or pair, and the workspace of its mean or sum."""

from __future__ import annotations

from math import prod
from typing import Any, Final

import torch

from ...machine.simulated_gpu import SimulatedGPU
from ..core.cuda_dispatch import refuse_cpu_tensors
from ..core.low_precision import in_single_precision
from ..core.memory_formats import contiguous_like, laid_out_as
from ..core.op_call import OpCall, contiguous
from ..core.reduction_workspace import alloc_column_sums_workspace, alloc_sum_workspace
from ..core.registry import as_on_cpu, define, estimated, op

_aten: Final = torch.ops.aten

_REDUCTION_NONE: Final = 0
"""Code of ``reduction="none"``."""

_LOSS: Final = "aten/src/ATen/native/Loss.cpp"
_NLL: Final = "aten/src/ATen/native/cuda/Loss.cu"
_NLL2D: Final = "aten/src/ATen/native/cuda/NLLLoss2d.cu"


def _reduced_meta(args: tuple[Any, ...], result: Any) -> Any:
    """A mean or a sum lies in the memory of the elements' losses, of which it is the first."""
    if result.dim() or not args[0].dim():
        return laid_out_as(0, 1)(args, result)
    shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
    return result.new_empty(shape.numel() or 1).as_strided((), ())


def _reduced_in_place(call: OpCall) -> None:
    """A loss whose mean or sum is copied into the losses of the elements."""
    call.alloc_outputs()
    tensor: torch.Tensor = call.args[0]
    if call.argument("reduction") != _REDUCTION_NONE:
        call.alloc_temp(tensor.element_size())
        alloc_sum_workspace(call, tensor)


def _reduce(call: OpCall, count: int, dtype: torch.dtype) -> None:
    """Losses of elements or rows, and what their mean or sum takes; the output comes between."""
    if call.argument("reduction") != _REDUCTION_NONE:
        call.alloc_temp(count * dtype.itemsize)
        call.alloc_outputs()
        alloc_column_sums_workspace(call, count, 1, dtype)


@op("aten::huber_loss", source=_LOSS)
def _huber_loss(call: OpCall) -> None:
    first, second = call.args[:2]
    shape = torch.broadcast_shapes(first.shape, second.shape)
    _reduce(call, prod(shape), torch.promote_types(first.dtype, second.dtype))


@op("aten::mse_loss", "aten::smooth_l1_loss", source=_LOSS, corrects_meta=_reduced_meta)
def _mse_loss(call: OpCall) -> None:
    """As a Huber loss, whose output comes later."""
    call.alloc_outputs()
    _huber_loss(call)


define(
    "aten::mse_loss_backward",
    "aten::smooth_l1_loss_backward",
    "aten::huber_loss_backward",
    meta=contiguous_like(1),
)
define(
    "aten::binary_cross_entropy",
    memory=_reduced_in_place,
    source=_NLL,
    corrects_meta=_reduced_meta,
)


def _with_logits(gpu: SimulatedGPU, *args: Any) -> Any:
    """Weights that lie on the CPU are refused."""
    refuse_cpu_tensors(_aten.binary_cross_entropy_with_logits.default, gpu, *args[2:4])
    return NotImplemented


define("aten::binary_cross_entropy_with_logits", source=_LOSS, composite=_with_logits)
define(
    "aten::soft_margin_loss",
    "aten::soft_margin_loss_backward",
    source=_LOSS,
    composite=as_on_cpu,
)
define("aten::nll_loss_forward", memory=contiguous(0, 1, 2), source=_NLL)
define("aten::nll_loss_backward", memory=contiguous(2, 3), source=_NLL)
define("aten::nll_loss2d_forward", memory=contiguous(0, 1, 2), source=_NLL2D)
define("aten::nll_loss2d_backward", memory=contiguous(0, 1, 2, 3), source=_NLL2D)


_BATCHED: Final = 2
_MULTI: Final = "aten/src/ATen/native/cuda/MultiMarginLoss.cu"
_MULTILABEL: Final = "aten/src/ATen/native/cuda/MultiLabelMarginCriterion.cu"


@op(
    "aten::multi_margin_loss",
    source=_MULTI,
    reference=in_single_precision(_aten.multi_margin_loss.default),
)
def _multi_margin_loss(call: OpCall) -> None:
    call.alloc_outputs()
    tensor: torch.Tensor = call.args[0]
    if not tensor.numel():
        return
    call.alloc_contiguous(*call.args[:2], call.argument("weight"))
    if tensor.dim() == _BATCHED:
        _reduce(call, tensor.shape[0], tensor.dtype)


@op(
    "aten::multi_margin_loss_backward",
    source=_MULTI,
    reference=in_single_precision(_aten.multi_margin_loss_backward.default),
    meta=contiguous_like(1),
)
def _multi_margin_loss_backward(call: OpCall) -> None:
    call.alloc_outputs()
    grad_output, tensor, target = call.args[:3]
    if tensor.numel():
        call.alloc_contiguous(tensor, grad_output, target, call.argument("weight"))


@op(
    "aten::multilabel_margin_loss_forward",
    source=_MULTILABEL,
    reference=in_single_precision(_aten.multilabel_margin_loss_forward.default),
)
def _multilabel_margin_loss_forward(call: OpCall) -> None:
    tensor: torch.Tensor = call.args[0]
    _loss, is_target = call.result
    if tensor.numel():
        call.alloc_contiguous(*call.args[:2])
    call.alloc_outputs(is_target)
    if tensor.numel() and tensor.dim() == _BATCHED:
        _reduce(call, tensor.shape[0], tensor.dtype)


op(
    "aten::multilabel_margin_loss_backward",
    source=_MULTILABEL,
    reference=in_single_precision(_aten.multilabel_margin_loss_backward.default),
    meta=contiguous_like(1),
)(contiguous(1, 2, 4, 0))

_MOST_ROWS: Final = 25
"""Rows up to which ``cdist_impl`` in ``Distance.cpp`` computes distances one by one."""

_DISTANCE: Final = "aten/src/ATen/native/Distance.cpp"
_PAIRS: Final = "aten/src/ATen/native/cuda/DistanceKernel.cu"


define("aten::_euclidean_dist", source=_DISTANCE, composite=as_on_cpu)


def _cdist(
    _gpu: SimulatedGPU, first: torch.Tensor, second: torch.Tensor, p: float, mode: int | None
) -> Any:
    """Euclidean distances of many rows are a product of matrices."""
    many = first.shape[-2] > _MOST_ROWS or second.shape[-2] > _MOST_ROWS
    if p != 2 or not (mode == 1 or (mode in (None, 0) and many)):
        return NotImplemented
    run = _aten._cdist_forward.default._op_dk
    return run(torch._C.DispatchKey.CPU, first, second, p, mode)


estimated("aten::_cdist_forward", source=_DISTANCE, composite=_cdist)(contiguous(0, 1))


@op("aten::_cdist_backward", source=_PAIRS)
def _cdist_backward(call: OpCall) -> None:
    """Contiguous inputs, and the gradient of each pair, which are summed."""
    grad_output, first, second, p, distances = call.args[:5]
    if not first.numel() or not second.numel():
        return
    batch = torch.broadcast_shapes(first.shape[:-2], second.shape[:-2])
    expanded = (tensor.expand(*batch, *tensor.shape[-2:]) for tensor in (first, second))
    call.alloc_contiguous(*expanded, distances, grad_output)
    call.alloc_outputs()
    if p and grad_output.numel():
        rows, columns = first.shape[-2:]
        batches = call.result.numel() // (rows * columns)
        _sum_pairs(call, (batches, second.shape[-2], rows, columns), 1)


@op("aten::_pdist_backward", source=_PAIRS)
def _pdist_backward(call: OpCall) -> None:
    """The gradient of each pair, which are summed."""
    call.alloc_outputs()
    grad_output, points, p = call.args[:3]
    if p and grad_output.numel() and points.numel():
        rows, columns = points.shape
        _sum_pairs(call, (rows - 1, rows, columns), 0)


def _sum_pairs(call: OpCall, shape: tuple[int, ...], dim: int) -> None:
    pairs = torch.empty(shape, dtype=call.result.dtype, device="meta")
    call.alloc_copy(pairs)
    alloc_sum_workspace(call, pairs, dim)
