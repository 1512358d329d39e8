"""Triangular systems: copies of matrices that cuBLAS cannot read, its workspace and pointers."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final

import torch

from ..memory_model import Basis, Entry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..op_call import OpCall

_POINTER: Final = 8
_INDEX: Final = 8

_MOST_ALONE: Final = 8
"""Most matrices that are solved one after another."""

_LEAST_ALONE: Final = 64
"""Least rows of matrices that are solved one after another."""


def solve(call: OpCall) -> None:
    """``linalg_solve_triangular``: copies of a given result and of a matrix that lie otherwise."""
    matrix, right = call.args[:2]
    result: torch.Tensor = call.result
    batch = torch.broadcast_shapes(matrix.shape[:-2], right.shape[:-2])
    if not result.numel():
        return
    for tensor in (result, matrix.expand(*batch, *matrix.shape[-2:])):
        if not (tensor.is_contiguous() or tensor.mT.is_contiguous()):
            call.alloc_copy(tensor)
    _take_pointers(call, prod(batch), matrix.shape[-1])


def solve_copies(call: OpCall) -> None:
    """``triangular_solve``, whose results are copies already."""
    solution, matrix = call.result
    if solution.numel():
        _take_pointers(call, prod(matrix.shape[:-2]), matrix.shape[-1])


def _take_pointers(call: OpCall, count: int, rows: int) -> None:
    """Take what cuBLAS is told of many small systems: where each matrix and right side lies."""
    if count > _MOST_ALONE or rows < _LEAST_ALONE:
        for _matrices_and_right_sides in range(2):
            call.alloc_temp(count * _POINTER)
    call.ensure_cublas_workspace()


def unpack(call: OpCall) -> None:
    """``lu_unpack``: each row's place, before they are made a matrix."""
    factors, pivots = call.args[:2]
    if not call.argument(3, "unpack_pivots", True):
        return
    rows, count = factors.shape[-2], prod(factors.shape[:-2])
    places = call.alloc_temp(rows * _INDEX)
    if count > 1:
        call.alloc_temp(count * rows * _INDEX)
        call.free_temp(places)
    call.alloc_contiguous(pivots)


_LINALG: Final = "aten/src/ATen/native/BatchLinearAlgebra.cpp"
_SOLVE: Final = f"{_LINALG}, cuda/linalg/BatchLinearAlgebraLibBlas.cpp"

ENTRIES: Final[Mapping[str, Entry]] = {
    "aten::linalg_solve_triangular": Entry(solve, _SOLVE, Basis.SOURCE),
    "aten::triangular_solve": Entry(solve_copies, _SOLVE, Basis.SOURCE),
    "aten::lu_unpack": Entry(unpack, _LINALG, Basis.SOURCE),
}
