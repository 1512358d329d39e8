"""cuBLAS: its workspaces, and the copies of matrices whose strides it cannot read."""

from __future__ import annotations

from typing import Final

import torch

from ..op_call import OpCall
from ..registry import op, recorded
from ..sparse.sparse_rules import product
from . import cublaslt

SOURCE: Final = "aten/src/ATen/native/cuda/Blas.cpp, aten/src/ATen/cuda/CublasHandlePool.cpp"


@op("aten::baddbmm", "aten::baddbmm_", source=SOURCE)
@recorded("aten::bmm", source=SOURCE)
def batched_memory(call: OpCall) -> None:
    """Copies of operands that are neither row- nor column-major."""
    call.alloc_outputs()
    first, second = factors(call)
    multiply_batches(call, first, second, call.result)


def multiply_batches(
    call: OpCall, first: torch.Tensor, second: torch.Tensor, result: torch.Tensor
) -> None:
    """The memory that a product of batches of matrices allocates after its output."""
    if result.numel() == 0 or first.shape[2] == 0:
        return
    rows, columns, inner = result.shape[1], result.shape[2], first.shape[2]
    if _is_column_major(result):
        operands = ((first, rows, inner), (second, inner, columns))
        is_transposed = False
    else:
        operands = ((second, columns, inner), (first, inner, rows))
        is_transposed = True
    for matrix, leading, other in operands:
        if not _batch_is_readable(matrix, is_transposed, leading, other):
            call.alloc_copy(matrix)
    call.ensure_cublas_workspace()


def _is_column_major(result: torch.Tensor) -> bool:
    _, rows, columns = result.shape
    _, row_stride, column_stride = result.stride()
    return row_stride == 1 and (columns == 1 or column_stride >= max(1, rows))


def _batch_is_readable(matrix: torch.Tensor, is_transposed: bool, leading: int, other: int) -> bool:
    strides = matrix.stride()
    fast, slow = (strides[2], strides[1]) if is_transposed else (strides[1], strides[2])
    if fast == 1 and slow >= max(1, leading):
        return True
    if slow == 1 and fast >= max(1, other):
        return True
    return matrix.is_contiguous() and 0 not in strides[1:]


@op("aten::addmm_", source=SOURCE)
@op("aten::mm", source=SOURCE, sparse=product)
def mm_memory(call: OpCall) -> None:
    """Copies of operands that are neither row- nor column-major."""
    call.alloc_outputs()
    first, _ = factors(call)
    if call.result.numel() and first.shape[1]:
        copy_unreadable(call)
        call.ensure_cublas_workspace()


@op("aten::addmm", source=SOURCE, sparse=product)
@op("aten::_addmm_activation", source=SOURCE)
def addmm_memory(call: OpCall) -> None:
    """As ``mm``, where cuBLASLt does not add the bias itself."""
    call.alloc_outputs()
    first, _ = factors(call)
    if not call.result.numel() or not first.shape[1]:
        return
    copy_unreadable(call)
    if cublaslt.adds_bias(call):
        cublaslt.need(call)
    else:
        call.ensure_cublas_workspace()


def copy_unreadable(call: OpCall) -> None:
    """Copies of matrices that are neither row- nor column-major."""
    first, second = factors(call)
    is_transposed = _is_row_major(call.result)
    for matrix in (second, first) if is_transposed else (first, second):
        if not _is_readable(matrix):
            call.alloc_copy(matrix)


def factors(call: OpCall) -> list[torch.Tensor]:
    """The two matrices that an op multiplies: the last of its tensors."""
    return [one for one in call.args if isinstance(one, torch.Tensor)][-2:]


def _is_row_major(result: torch.Tensor) -> bool:
    return result.is_contiguous()


def _is_readable(matrix: torch.Tensor) -> bool:
    rows, columns = matrix.shape
    row_stride, column_stride = matrix.stride()
    if matrix.is_contiguous() or matrix.t().is_contiguous():
        return True
    return (row_stride == 1 and column_stride >= max(1, rows)) or (
        column_stride == 1 and row_stride >= max(1, columns)
    )


@op("aten::mv", "aten::addmv", "aten::addmv_", "aten::dot", "aten::vdot", source=SOURCE)
def _vectors_memory(call: OpCall) -> None:
    call.alloc_outputs()
    if call.args[-1].numel():
        call.ensure_cublas_workspace()
