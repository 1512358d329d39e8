"""Products of matrices in another dtype than theirs: as those of one dtype, and what differs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from ..memory_model import Basis, Entry
from . import cublaslt
from .cublas import batched, copy_unreadable, matrices, matrices_and_bias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..op_call import Launch


def added(launch: Launch) -> None:
    """``addmm.dtype``: its result has the bias's size first, and is resized to the product's."""
    bias: torch.Tensor = launch.args[0]
    result: torch.Tensor = launch.result
    if bias.shape == result.shape:
        return
    first = launch.borrow(bias.numel() * result.element_size())
    launch.made(result)
    launch.give_back(first)


def batch_added(launch: Launch) -> None:
    """``baddbmm.dtype``: its result is a converted copy of a copy of the bias."""
    bias: torch.Tensor = launch.args[0]
    if bias.dtype == launch.result.dtype:
        return
    copy = launch.borrow(bias.numel() * bias.element_size())
    launch.made(launch.result)
    launch.give_back(copy)


def of_integers(launch: Launch) -> None:
    """``_int_mm``: cuBLASLt is given no workspace, but its handle may come with cuBLAS's."""
    copy_unreadable(launch)
    if cublaslt.RELEASE < cublaslt.BARE_HANDLE_SINCE:
        launch.need_cublas()


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
