"""Layer norm: of half precision, CUDA keeps the statistics of rows in single precision.

A CPU keeps them in the type of the weight.
"""

from __future__ import annotations

from math import prod
from typing import Any, Final

import torch

from ...hardware.decisions import decision
from ...hardware.gpu import GPU
from ..memory_formats import acc_type
from ..op_call import OpCall
from ..reduction_workspace import alloc_column_sums_workspace
from ..registry import op

SOURCE: Final = "aten/src/ATen/native/cuda/layer_norm_kernel.cu"

_COLUMNS: Final = 32
"""Columns that a block of threads sums over, and rows that it takes at least."""

_TALL: Final = 64 * 1024
_MOST_BLOCKS: Final = 64 * 1024 // 2
_aten: Final = torch.ops.aten


def _reference(tensor: torch.Tensor, *others: Any) -> tuple[torch.Tensor, ...]:
    result, mean, rstd = _aten.native_layer_norm.default(tensor, *others)
    dtype = acc_type(tensor.dtype)
    return result, mean.to(dtype), rstd.to(dtype)


@op("aten::native_layer_norm", source=SOURCE, reference=_reference, meta=_reference)
def _memory(call: OpCall) -> None:
    call.alloc_contiguous(call.args[0], call.argument(2, "weight"), call.argument(3, "bias"))


def _backward_reference(
    grad_output: torch.Tensor,
    tensor: torch.Tensor,
    size: list[int],
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    *others: Any,
) -> Any:
    dtype = tensor.dtype if weight is None else weight.dtype
    return _aten.native_layer_norm_backward.default(
        grad_output, tensor, size, mean.to(dtype), rstd.to(dtype), weight, *others
    )


@op("aten::native_layer_norm_backward", source=SOURCE, reference=_backward_reference)
def _backward_memory(call: OpCall) -> None:
    call.alloc_contiguous(call.args[1], call.argument(5, "weight"), call.argument(6, "bias"))
    call.alloc_outputs()
    alloc_weight_sums(call, *call.result[1:])


def alloc_weight_sums(call: OpCall, *weight_gradients: torch.Tensor | None) -> None:
    """The gradients of weights that many rows add up to are summed in two steps."""
    grad_output, tensor, size = call.args[:3]
    columns = prod(size)
    if not tensor.numel():
        return
    rows = tensor.numel() // columns
    call.alloc_contiguous(grad_output)
    given = [weight for weight in weight_gradients if weight is not None and weight.numel()]
    if not given or rows <= _TALL or not _is_narrow(call.model, columns):
        return
    blocks = min(_MOST_BLOCKS // -(-columns // _COLUMNS), -(-rows // _COLUMNS))
    for weight in given:
        call.alloc_temp(blocks * weight.shape[-1] * weight.element_size())
    for weight in given:
        with call.scope():  # the sum takes the place of a weight's gradient made before
            call.alloc_temp(weight.shape[-1] * weight.element_size())
            alloc_column_sums_workspace(call, blocks, weight.shape[-1], weight.dtype)


@decision
def _is_narrow(gpu: GPU, columns: int) -> bool:
    """True if blocks of threads for all columns leave most of the GPU idle."""
    return columns // _COLUMNS < gpu.multi_processor_count // 2
