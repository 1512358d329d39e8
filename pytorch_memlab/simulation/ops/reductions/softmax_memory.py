"""Softmax: contiguous copies, and the product that a softmax's gradient is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
from torch._prims_common import compute_elementwise_output_strides, make_contiguous_strides_for

from ..memory_model import Basis, Entry, nothing
from ..reduction_workspace import stage_values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..op_call import OpCall


def forward(call: OpCall) -> None:
    """``_softmax`` and ``_log_softmax``: a contiguous input."""
    call.alloc_contiguous(call.args[0])


def gradient(call: OpCall) -> None:
    """``_softmax_backward_data``: the gradient times the result, contiguous copies of both."""
    gradient, output = call.args[:2]
    call.alloc_copy(gradient)
    if gradient.is_contiguous() and output.is_contiguous():
        return
    strides = compute_elementwise_output_strides(gradient, output)
    if strides != make_contiguous_strides_for(gradient.shape):
        call.alloc_copy(gradient)
    call.alloc_contiguous(output)


def log_gradient(call: OpCall) -> None:
    """``_log_softmax_backward_data``: contiguous inputs."""
    call.alloc_contiguous(*call.args[:2])


def safe_inputs(call: OpCall) -> None:
    """``_safe_softmax``, before its result: a softmax, and which rows are all minus infinity."""
    source: torch.Tensor = call.args[0]
    dim = call.argument(1, "dim")
    dtype = call.argument(2, "dtype") or source.dtype
    if dtype != source.dtype:
        call.alloc_temp(source.numel() * dtype.itemsize)
    call.alloc_temp(source.numel() * dtype.itemsize)
    call.alloc_temp(source.numel())
    call.alloc_temp(source.numel() // max(1, source.shape[dim]))
    stage_values(call, source, dim, torch.bool)
    call.alloc_temp(dtype.itemsize)


_SOFTMAX: Final = "aten/src/ATen/native/cuda/SoftMax.cu"

ENTRIES: Final[Mapping[str, Entry]] = {
    "aten::_safe_softmax": Entry(
        nothing, "aten/src/ATen/native/SoftMax.cpp", Basis.SOURCE, safe_inputs
    ),
    "aten::_softmax": Entry(forward, _SOFTMAX, Basis.SOURCE),
    "aten::_log_softmax": Entry(forward, _SOFTMAX, Basis.SOURCE),
    "aten::_softmax_backward_data": Entry(gradient, _SOFTMAX, Basis.SOURCE),
    "aten::_log_softmax_backward_data": Entry(log_gradient, _SOFTMAX, Basis.SOURCE),
}
