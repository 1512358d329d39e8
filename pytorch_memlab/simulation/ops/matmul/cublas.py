"""cuBLAS: its workspaces, and the copies of matrices that it cannot read, triangular ones too."""

from __future__ import annotations

from math import prod
from typing import Any, Final

import torch

from ...machine.torch_release import RELEASE
from ..core.op_call import INDEX, OpCall
from ..core.registry import as_on_cpu, define, op, recorded
from ..sparse import product
from . import cublaslt

SOURCE: Final = "aten/src/ATen/native/cuda/Blas.cpp, aten/src/ATen/cuda/CublasHandlePool.cpp"

_MATRICES: Final = "addmm_cuda"
"""Name of the kernel for two matrices, in errors."""

_OUTER_PRODUCTS_SINCE: Final = (2, 13)
"""Release in which Triton multiplies columns by rows (``torch/_native/ops/bmm_outer_product``)."""


@recorded("aten::bmm", source=SOURCE)
def _bmm_memory(call: OpCall) -> None:
    """A product of columns and rows takes nothing but its output where Triton runs it."""
    is_outer = (
        RELEASE >= _OUTER_PRODUCTS_SINCE
        and call.op is torch.ops.aten.bmm.default
        and call.args[0].shape[2] == 1
        and not call.args[0].is_complex()
        and call.machine.workspaces.environment.get("TORCH_DISABLE_NATIVE_JIT") != "1"
    )
    if not is_outer:
        batched_memory(call)


@op("aten::baddbmm", "aten::baddbmm_", source=SOURCE)
def batched_memory(call: OpCall) -> None:
    """Copies of operands that are neither row- nor column-major."""
    call.refuse_integers("baddbmm_cuda")
    call.alloc_outputs()
    first, second = factors(call)
    result: torch.Tensor = call.result
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
    call.refuse_integers(_MATRICES)
    call.alloc_outputs()
    first, second = factors(call)
    if call.result.numel() and first.shape[1]:
        copy_unreadable(call, first, second)
        call.ensure_cublas_workspace()


def _addmm_activation(*args: Any, use_gelu: bool = False, **factors: Any) -> torch.Tensor:
    """CUDA's GELU is that of cuBLASLt, and everywhere its approximation by ``tanh``."""
    result = torch.addmm(*args, **factors)
    return torch.nn.functional.gelu(result, approximate="tanh") if use_gelu else result.relu_()


@op("aten::addmm", source=SOURCE, sparse=product)
@op("aten::_addmm_activation", source=SOURCE, reference=_addmm_activation)
def addmm_memory(call: OpCall) -> None:
    """As ``mm``, where cuBLASLt does not add the bias itself."""
    call.refuse_integers(_MATRICES)
    call.alloc_outputs()
    first, second = factors(call)
    if not call.result.numel() or not first.shape[1]:
        return
    copy_unreadable(call, first, second)
    if cublaslt.adds_bias(call):
        cublaslt.need(call)
    else:
        call.ensure_cublas_workspace()


def copy_unreadable(call: OpCall, first: torch.Tensor, second: torch.Tensor) -> None:
    """Copies of matrices that are neither row- nor column-major."""
    for matrix in (second, first) if call.result.is_contiguous() else (first, second):
        if not _is_readable(matrix):
            call.alloc_copy(matrix)


def factors(call: OpCall) -> list[torch.Tensor]:
    """The two matrices that an op multiplies: the last of its tensors."""
    return [arg for arg in call.args if isinstance(arg, torch.Tensor)][-2:]


def _is_readable(matrix: torch.Tensor) -> bool:
    if matrix.is_contiguous() or matrix.t().is_contiguous():
        return True
    rows, columns = matrix.shape
    row_stride, column_stride = matrix.stride()
    return (row_stride == 1 and column_stride >= max(1, rows)) or (
        column_stride == 1 and row_stride >= max(1, columns)
    )


@op("aten::mv", "aten::addmv", "aten::addmv_", "aten::dot", "aten::vdot", source=SOURCE)
def _vectors_memory(call: OpCall) -> None:
    call.refuse_integers("dot" if "dot" in call.op.name() else "addmv_impl_cuda")
    call.alloc_outputs()
    if call.args[-1].numel():
        call.ensure_cublas_workspace()


_LINALG: Final = "aten/src/ATen/native/BatchLinearAlgebra.cpp"
_SOLVE: Final = f"{_LINALG}, cuda/linalg/BatchLinearAlgebraLibBlas.cpp"
_POINTER: Final = 8

# ``triangular_solve_kernel`` in ``aten/src/ATen/native/cuda/linalg/BatchLinearAlgebra.cpp``.
_MOST_ALONE: Final = 8
"""Most matrices that are solved one after another."""

_LEAST_ALONE: Final = 64
"""Least rows of matrices that are solved one after another."""


@op("aten::linalg_solve_triangular", source=_SOLVE)
def _solve(call: OpCall) -> None:
    """Copies of a given result and of a matrix that lie otherwise."""
    call.alloc_outputs()
    matrix, right = call.args[:2]
    result: torch.Tensor = call.result
    batch = torch.broadcast_shapes(matrix.shape[:-2], right.shape[:-2])
    if not result.numel():
        return
    for tensor in (result, matrix.expand(*batch, *matrix.shape[-2:])):
        if not (tensor.is_contiguous() or tensor.mT.is_contiguous()):
            call.alloc_copy(tensor)
    _alloc_pointers(call, prod(batch), matrix.shape[-1])


@op("aten::triangular_solve", source=_SOLVE)
def _solve_copies(call: OpCall) -> None:
    """The results are copies already."""
    call.alloc_outputs()
    solution, matrix = call.result
    if solution.numel():
        _alloc_pointers(call, prod(matrix.shape[:-2]), matrix.shape[-1])


def _alloc_pointers(call: OpCall, count: int, rows: int) -> None:
    """For many small systems cuBLAS takes where each matrix and right side lies."""
    if count > _MOST_ALONE or rows < _LEAST_ALONE:
        call.alloc_temps([count * _POINTER] * 2)  # matrices and right sides
    call.ensure_cublas_workspace()


@op("aten::lu_unpack", source=_LINALG)
def _unpack(call: OpCall) -> None:
    """Each row's place, before they are made a matrix."""
    call.alloc_outputs()
    factors, pivots = call.args[:2]
    if not call.argument("unpack_pivots"):
        return
    rows, count = factors.shape[-2], prod(factors.shape[:-2])
    places = call.alloc_temp(rows * INDEX)
    if count > 1:
        call.alloc_temp(count * rows * INDEX)
        call.free_temp(places)
    call.alloc_contiguous(pivots)


define("aten::_trilinear", source="aten/src/ATen/native/Linear.cpp", composite=as_on_cpu)
