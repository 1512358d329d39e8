"""Group norm: contiguous on CUDA, in the memory format of the input on a CPU.

``aten/src/ATen/native/group_norm.cpp`` chooses the format by the device, for both passes.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from ..core.memory_formats import LOW_PRECISION, acc_type
from ..core.op_call import OpCall
from ..core.registry import op
from .batch_norm import in_dtypes
from .parameter_types import refuse_mixed_types

_SOURCE: Final = "aten/src/ATen/native/cuda/group_norm_kernel.cu"


def _forward(
    tensor: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, *others: Any
) -> Any:
    refuse_mixed_types(tensor, weight, bias)
    return torch.ops.aten.native_group_norm.default(tensor.contiguous(), weight, bias, *others)


@op("aten::native_group_norm", source=_SOURCE, values=_forward)
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
        call.alloc_temps([batch * groups * width] * 2)  # mean and rstd
    weighted = any(weight is not None for weight in call.args[1:3])
    if inner != 1 and weighted:
        call.alloc_temps([batch * channels * width] * 2)  # scale and shift


def _backward(
    grad_output: torch.Tensor,
    tensor: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    *others: Any,
) -> Any:
    results = torch.ops.aten.native_group_norm_backward.default(
        grad_output.contiguous(), tensor.contiguous(), mean, rstd, weight, *others
    )
    return in_dtypes(results, tensor, weight)


@op("aten::native_group_norm_backward", source=_SOURCE, values=_backward)
def _backward_memory(call: OpCall) -> None:
    """Sums for each channel, and coefficients for each group."""
    tensor, weight = call.args[1], call.args[4]
    batch, channels, inner, groups, mask = call.args[5:10]
    if tensor.numel():
        call.alloc_contiguous(*call.args[:5])
    call.alloc_outputs()
    width = acc_type(tensor.dtype).itemsize
    if inner != 1:
        call.alloc_temps([batch * channels * width] * 2)  # sums
    if mask[0]:
        call.alloc_temps([batch * groups * width] * 2)  # coefficients
        if weight is not None and inner != 1:
            call.alloc_temp(batch * channels * width)
