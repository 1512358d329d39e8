"""Margin losses: contiguous inputs, and the loss of each sample."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Final

import torch

from ..reduction_workspace import alloc_column_sums_workspace
from ..registry import define, op
from .losses import REDUCTION_NONE, reduced_in_place, reduced_meta

if TYPE_CHECKING:
    from ..op_call import OpCall

_BATCHED: Final = 2
_MULTI: Final = "aten/src/ATen/native/cuda/MultiMarginLoss.cu"
_MULTILABEL: Final = "aten/src/ATen/native/cuda/MultiLabelMarginCriterion.cu"
_LOSS: Final = "aten/src/ATen/native/Loss.cpp"


def _backward_meta(
    _grad_output: torch.Tensor, tensor: torch.Tensor, *_others: Any, **_options: Any
) -> torch.Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


@op("aten::multi_margin_loss", source=_MULTI)
def _multi_margin_loss(call: OpCall) -> None:
    call.alloc_outputs()
    tensor: torch.Tensor = call.args[0]
    if not tensor.numel():
        return
    call.alloc_contiguous(*call.args[:2], call.argument(4, "weight"))
    if tensor.dim() == _BATCHED and call.argument(5, "reduction", 1) != REDUCTION_NONE:
        call.alloc_temp(tensor.shape[0] * tensor.element_size())
        alloc_column_sums_workspace(call, tensor.shape[0], 1, tensor.dtype)


@op(
    "aten::multi_margin_loss_backward",
    source=_MULTI,
    reference=torch.ops.aten.multi_margin_loss_backward.default,
    meta=_backward_meta,
)
def _multi_margin_loss_backward(call: OpCall) -> None:
    call.alloc_outputs()
    grad_output, tensor, target = call.args[:3]
    if tensor.numel():
        call.alloc_contiguous(tensor, grad_output, target, call.argument(5, "weight"))


@op("aten::multilabel_margin_loss_forward", source=_MULTILABEL)
def _multilabel_margin_loss_forward(call: OpCall) -> None:
    tensor: torch.Tensor = call.args[0]
    loss, is_target = call.result
    if tensor.numel():
        call.alloc_contiguous(*call.args[:2])
    call.alloc_outputs(is_target)
    if not tensor.numel() or tensor.dim() != _BATCHED or call.args[2] == REDUCTION_NONE:
        return
    call.alloc_temp(tensor.shape[0] * tensor.element_size())
    call.alloc_outputs(loss)
    alloc_column_sums_workspace(call, tensor.shape[0], 1, tensor.dtype)


@op(
    "aten::multilabel_margin_loss_backward",
    source=_MULTILABEL,
    reference=torch.ops.aten.multilabel_margin_loss_backward.default,
    meta=_backward_meta,
)
def _multilabel_margin_loss_backward(call: OpCall) -> None:
    call.alloc_outputs()
    grad_output, tensor, target, _, is_target = call.args[:5]
    if tensor.numel():
        call.alloc_contiguous(tensor, target, is_target, grad_output)


define(
    "aten::soft_margin_loss", memory=reduced_in_place(2), source=_LOSS, corrects_meta=reduced_meta
)


@op("aten::soft_margin_loss_backward", source=_LOSS)
def _soft_margin_loss_backward(call: OpCall) -> None:
    """The exponentials of a product."""
    _, tensor, target = call.args[:3]
    shape = torch.broadcast_shapes(tensor.shape, target.shape)
    nbytes = prod(shape) * torch.promote_types(tensor.dtype, target.dtype).itemsize
    negative = call.alloc_temp(target.numel() * target.element_size())
    product = call.alloc_temp(nbytes)
    call.alloc_temp(nbytes)
    call.free_temp(product)
    call.free_temp(negative)
