"""Products of matrices in another dtype than theirs, which only CUDA has, or restricts.

``aten/src/ATen/native/cuda/Blas.cpp``: float32 products of half precision, int32 of int8, float8.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from ..memory_formats import LOW_PRECISION
from ..op_call import OpCall
from ..registry import estimated, op
from . import cublaslt
from .cublas import SOURCE, addmm_memory, batched_memory, copy_unreadable, mm_memory

_aten: Final = torch.ops.aten


def _widened(product: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A product of tensors that are converted first, on the CPU or the meta device."""

    def compute(*args: Any, **factors: float) -> torch.Tensor:
        *tensors, dtype = args
        given = tensors[-2].dtype
        if dtype != given and not (given in LOW_PRECISION and dtype == torch.float32):
            raise RuntimeError(
                "out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs"
            )
        return product(*(one.to(dtype) for one in tensors), **factors)

    return compute


def _baddbmm(bias: torch.Tensor, *args: Any, **factors: float) -> torch.Tensor:
    found = _widened(torch.baddbmm)(bias, *args, **factors)
    if bias.shape != found.shape:
        raise RuntimeError("self must have the same shape as the output")
    return torch.empty_like(bias, dtype=found.dtype).copy_(found)


def _into_out(product: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The overload with ``out=``, on the CPU or the meta device."""

    def write(*args: Any, out: torch.Tensor, **factors: float) -> torch.Tensor:
        dtype = args[-1]
        if dtype != out.dtype:
            raise RuntimeError("out_dtype must be the same as the dtype of the provided out tensor")
        found = product(*args, **factors)
        return out.resize_(found.shape).copy_(found)

    return write


def _int_mm(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Of the sizes that CUDA takes."""
    if first.dim() == second.dim() == 2:
        if first.shape[0] <= 16:
            raise RuntimeError(
                f"self.size(0) needs to be greater than 16, but got {first.shape[0]}"
            )
        for name, size in (("self", first.shape[1]), ("mat2", second.shape[1])):
            if not size or size % 8:
                raise RuntimeError(
                    f"{name}.size(1) needs to be greater than 0 and a multiple of 8, but got {size}"
                )
    product: torch.Tensor = _aten._int_mm.default(first, second)
    return product


def _addmm_memory(call: OpCall) -> None:
    """The output has the size of the bias first, and is resized to that of the product."""
    bias: torch.Tensor = call.args[0]
    result: torch.Tensor = call.result
    if bias.shape != result.shape:
        first = call.alloc_temp(bias.numel() * result.element_size())
        call.alloc_outputs(result)
        call.free_temp(first)
    addmm_memory(call)


def _baddbmm_memory(call: OpCall) -> None:
    """The output is a converted copy of a copy of the bias."""
    bias: torch.Tensor = call.args[0]
    if bias.dtype != call.result.dtype:
        copy = call.alloc_temp(bias.numel() * bias.element_size())
        call.alloc_outputs(call.result)
        call.free_temp(copy)
    batched_memory(call)


for _name, _product, _memory, _out_memory in (
    ("mm", _widened(torch.mm), mm_memory, mm_memory),
    ("bmm", _widened(torch.bmm), batched_memory, batched_memory),
    ("addmm", _widened(torch.addmm), _addmm_memory, addmm_memory),
    ("baddbmm", _baddbmm, _baddbmm_memory, batched_memory),
):
    _write = _into_out(_product)
    op(f"aten::{_name}.dtype", source=SOURCE, reference=_product, meta=_product)(_memory)
    op(f"aten::{_name}.dtype_out", source=SOURCE, reference=_write, meta=_write)(_out_memory)


@op("aten::_int_mm", source=SOURCE, reference=_int_mm, meta=_int_mm)
def _int_mm_memory(call: OpCall) -> None:
    """CuBLASLt is given no workspace, but its handle may come with that of cuBLAS."""
    call.alloc_outputs()
    copy_unreadable(call)
    if cublaslt.handle_needs_cublas():
        call.ensure_cublas_workspace()


_OLDEST: Final = (8, 9)


@estimated(
    "aten::_scaled_mm",
    source="aten/src/ATen/native/cuda/ScaledBlas.cpp, aten/src/ATen/cuda/CUDABlas.cpp",
)
def _scaled_mm_memory(call: OpCall) -> None:
    """The workspace of cuBLASLt.

    The operands are never copied: one that is not row-major, or column-major in the second's case,
    is an error. With a scale for each row another library may multiply, whose workspace only it
    knows.
    """
    if (call.model.major, call.model.minor) < _OLDEST:
        raise RuntimeError(
            "torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 "
            "or 8.9, or ROCm MI300+"
        )
    call.alloc_outputs()
    if call.result.numel() == 0:
        return
    cublaslt.need(call)
    scale = call.argument("scale_a")
    if scale.numel() > 1:
        call.unknown_workspace = "workspaces of row-wise scaled products"
