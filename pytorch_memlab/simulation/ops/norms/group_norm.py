"""Group norm: contiguous on CUDA, in the memory format of the input on a CPU.

``aten/src/ATen/native/group_norm.cpp`` chooses the format by the device, for both passes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from ..memory_formats import LOW_PRECISION, acc_type
from ..registry import op
from .batch_norm import in_dtypes

if TYPE_CHECKING:
    from ..op_call import OpCall

    Tensors = tuple[torch.Tensor | None, ...]

_SOURCE: Final = "aten/src/ATen/native/cuda/group_norm_kernel.cu"


def _reference(tensor: torch.Tensor, *others: Any) -> Tensors:
    results: Tensors = torch.ops.aten.native_group_norm.default(tensor.contiguous(), *others)
    return results


@op("aten::native_group_norm", source=_SOURCE, reference=_reference, meta=_reference)
def _memory(call: OpCall) -> None:
    tensor: torch.Tensor = call.args[0]
    batch, channels, inner, groups = call.args[3:7]
    if tensor.numel():
        call.alloc_contiguous(*call.args[:3])
    call.alloc_outputs()
    if not batch:
        return
    width = acc_type(tensor.dtype).itemsize
    if tensor.dtype in LOW_PRECISION:
        for _mean_and_rstd in range(2):
            call.alloc_temp(batch * groups * width)
    weighted = any(weight is not None for weight in call.args[1:3])
    if inner != 1 and weighted:
        for _scale_and_shift in range(2):
            call.alloc_temp(batch * channels * width)


def _backward_reference(
    grad_output: torch.Tensor,
    tensor: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    *others: Any,
) -> Tensors:
    results = torch.ops.aten.native_group_norm_backward.default(
        grad_output.contiguous(), tensor.contiguous(), mean, rstd, weight, *others
    )
    return in_dtypes(results, tensor, weight)


@op(
    "aten::native_group_norm_backward",
    source=_SOURCE,
    reference=_backward_reference,
    meta=_backward_reference,
)
def _backward_memory(call: OpCall) -> None:
    """Sums for each channel, and coefficients for each group."""
    tensor, weight = call.args[1], call.args[4]
    batch, channels, inner, groups, mask = call.args[5:10]
    if tensor.numel():
        call.alloc_contiguous(*call.args[:5])
    call.alloc_outputs()
    width = acc_type(tensor.dtype).itemsize
    if inner != 1:
        for _sums in range(2):
            call.alloc_temp(batch * channels * width)
    if mask[0]:
        for _coefficients in range(2):
            call.alloc_temp(batch * groups * width)
        if weight is not None and inner != 1:
            call.alloc_temp(batch * channels * width)
