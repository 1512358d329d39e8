"""Losses: the unreduced loss of each element, and the workspace of its mean or sum."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Final

import torch

from ..reduction_workspace import alloc_column_sums_workspace, alloc_sum_workspace
from ..registry import Memory, define, op

if TYPE_CHECKING:
    from ..op_call import OpCall

REDUCTION_NONE: Final = 0
"""Code of ``reduction="none"``."""

_LOSS: Final = "aten/src/ATen/native/Loss.cpp"
_NLL: Final = "aten/src/ATen/native/cuda/Loss.cu"
_NLL2D: Final = "aten/src/ATen/native/cuda/NLLLoss2d.cu"


def reduced_meta(args: tuple[Any, ...], result: Any) -> Any:
    """A mean or a sum lies in the memory of the elements' losses, of which it is the first."""
    if result.dim() or not args[0].dim():
        return result
    shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
    return result.new_empty(shape.numel() or 1).as_strided((), ())


def reduced_in_place(position: int) -> Memory:
    """A loss whose mean or sum is copied into the losses of the elements."""

    def memory(call: OpCall) -> None:
        call.alloc_outputs()
        tensor: torch.Tensor = call.args[0]
        if call.argument(position, "reduction", 1) != REDUCTION_NONE:
            call.alloc_temp(tensor.element_size())
            alloc_sum_workspace(call, tensor)

    return memory


def _broadcast(call: OpCall) -> tuple[int, torch.dtype]:
    first, second = call.args[:2]
    shape = torch.broadcast_shapes(first.shape, second.shape)
    return prod(shape), torch.promote_types(first.dtype, second.dtype)


@op("aten::mse_loss", "aten::smooth_l1_loss", source=_LOSS, corrects_meta=reduced_meta)
def _mse_loss(call: OpCall) -> None:
    call.alloc_outputs()
    if call.argument(2, "reduction", 1) != REDUCTION_NONE:
        count, dtype = _broadcast(call)
        call.alloc_temp(count * dtype.itemsize)
        alloc_column_sums_workspace(call, count, 1, dtype)


@op("aten::huber_loss", source=_LOSS)
def _huber_loss(call: OpCall) -> None:
    if call.argument(2, "reduction", 1) != REDUCTION_NONE:
        count, dtype = _broadcast(call)
        call.alloc_temp(count * dtype.itemsize)
        call.alloc_outputs()
        alloc_column_sums_workspace(call, count, 1, call.result.dtype)


define(
    "aten::binary_cross_entropy",
    memory=reduced_in_place(3),
    source=_NLL,
    corrects_meta=reduced_meta,
)


@op("aten::binary_cross_entropy_with_logits", source=_LOSS)
def _binary_cross_entropy_with_logits(call: OpCall) -> None:
    """Its terms one by one, and their mean or sum."""
    tensor, pos_weight = call.args[0], call.argument(3, "pos_weight")
    is_reduced = call.argument(4, "reduction", 1) != REDUCTION_NONE
    call.alloc_copy(tensor)
    if pos_weight is not None:
        with call.scope():
            call.alloc_copy(pos_weight)
            call.alloc_copy(tensor)
    if is_reduced:
        call.alloc_copy(tensor)
    call.alloc_outputs()
    if is_reduced:
        alloc_sum_workspace(call, tensor)


def _contiguous(start: int, stop: int) -> Memory:
    def memory(call: OpCall) -> None:
        call.alloc_outputs()
        call.alloc_contiguous(*call.args[start:stop])

    return memory


for _name, _start, _stop, _source in (
    ("nll_loss_forward", 0, 3, _NLL),
    ("nll_loss_backward", 2, 4, _NLL),
    ("nll_loss2d_forward", 0, 3, _NLL2D),
    ("nll_loss2d_backward", 0, 4, _NLL2D),
):
    define(f"aten::{_name}", memory=_contiguous(_start, _stop), source=_source)
