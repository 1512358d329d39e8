"""Products of matrices in another dtype than theirs: as those of one dtype, and what differs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from ..memory_model import Basis, Entry
from . import cublaslt
from .cublas import batched, copy_unreadable, matrices, matrices_and_bias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..op_call import OpCall


def added(call: OpCall) -> None:
    """``addmm.dtype``: its result has the bias's size first, and is resized to the product's."""
    bias: torch.Tensor = call.args[0]
    result: torch.Tensor = call.result
    if bias.shape == result.shape:
        return
    first = call.alloc_temp(bias.numel() * result.element_size())
    call.alloc_outputs(result)
    call.free_temp(first)


def batch_added(call: OpCall) -> None:
    """``baddbmm.dtype``: its result is a converted copy of a copy of the bias."""
    bias: torch.Tensor = call.args[0]
    if bias.dtype == call.result.dtype:
        return
    copy = call.alloc_temp(bias.numel() * bias.element_size())
    call.alloc_outputs(call.result)
    call.free_temp(copy)


def of_integers(call: OpCall) -> None:
    """``_int_mm``: cuBLASLt is given no workspace, but its handle may come with cuBLAS's."""
    copy_unreadable(call)
    if cublaslt.RELEASE < cublaslt.BARE_HANDLE_SINCE:
        call.ensure_cublas_workspace()


_BLAS: Final = "aten/src/ATen/native/cuda/Blas.cpp, aten/src/ATen/cuda/CublasHandlePool.cpp"

ENTRIES: Final[Mapping[str, Entry]] = {
    "aten::mm.dtype": Entry(matrices, _BLAS, Basis.SOURCE),
    "aten::bmm.dtype": Entry(batched, _BLAS, Basis.SOURCE),
    "aten::addmm.dtype": Entry(matrices_and_bias, _BLAS, Basis.SOURCE, make=added),
    "aten::baddbmm.dtype": Entry(batched, _BLAS, Basis.SOURCE, make=batch_added),
    "aten::mm.dtype_out": Entry(matrices, _BLAS, Basis.SOURCE),
    "aten::bmm.dtype_out": Entry(batched, _BLAS, Basis.SOURCE),
    "aten::addmm.dtype_out": Entry(matrices_and_bias, _BLAS, Basis.SOURCE),
    "aten::baddbmm.dtype_out": Entry(batched, _BLAS, Basis.SOURCE),
    "aten::_int_mm": Entry(of_integers, _BLAS, Basis.SOURCE),
}
