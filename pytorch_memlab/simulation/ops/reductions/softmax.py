"""Softmax: of half precision with a float32 result, CUDA converts within the kernel.

A CPU converts the input first, and keeps the copy (``aten/src/ATen/native/SoftMax.cpp``).
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch._prims_common import compute_elementwise_output_strides, make_contiguous_strides_for

from ...machine.simulated_gpu import SimulatedGPU
from ..core.memory_formats import made_contiguous
from ..core.op_call import OpCall, contiguous
from ..core.registry import Implementation, as_on_cpu, define

_SOURCE: Final = "aten/src/ATen/native/cuda/SoftMax.cu"
_aten: Final = torch.ops.aten


def _converting(kernel: Any) -> Implementation:
    def dispatch(
        gpu: SimulatedGPU, tensor: torch.Tensor, dim: int, dtype: torch.dtype | None = None
    ) -> Any:
        if tensor.dtype != torch.float16 or dtype != torch.float32:
            return NotImplemented
        return kernel(tensor, dim, True)

    return dispatch


def _forward(kernel: Any) -> Implementation:
    def reference(tensor: torch.Tensor, dim: int, half_to_float: bool) -> Any:
        return kernel(tensor.float() if half_to_float else tensor, dim, False)

    return reference


def _backward(kernel: Any) -> Implementation:
    def reference(
        grad_output: torch.Tensor, output: torch.Tensor, dim: int, input_dtype: torch.dtype
    ) -> Any:
        return kernel(grad_output, output, dim, grad_output.dtype).to(input_dtype)

    return reference


def _product(call: OpCall) -> None:
    """The gradient times the output, contiguous copies of both."""
    grad_output, output = call.args[:2]
    call.alloc_outputs()
    call.alloc_copy(grad_output)
    if grad_output.is_contiguous() and output.is_contiguous():
        return
    strides = compute_elementwise_output_strides(grad_output, output)
    if strides != make_contiguous_strides_for(grad_output.shape):
        call.alloc_copy(grad_output)
    call.alloc_contiguous(output)


define("aten::softmax.int", cuda_dispatch=_converting(_aten._softmax.default))
define("aten::log_softmax.int", cuda_dispatch=_converting(_aten._log_softmax.default))

for _name, _memory, _reference in (
    ("_softmax", contiguous(0), _forward),
    ("_log_softmax", contiguous(0), _forward),
    ("_softmax_backward_data", _product, _backward),
    ("_log_softmax_backward_data", contiguous(0, 1), _backward),
):
    define(
        f"aten::{_name}",
        memory=_memory,
        source=_SOURCE,
        corrects_meta=made_contiguous,
        reference=_reference(getattr(_aten, _name).default),
    )

define("aten::_safe_softmax", source="aten/src/ATen/native/SoftMax.cpp", composite=as_on_cpu)
