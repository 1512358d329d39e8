"""Triangular systems: copies of matrices that cuBLAS cannot read, its workspace and pointers."""

from __future__ import annotations

from math import prod
from typing import Final

import torch

from ..op_call import OpCall
from ..registry import op

_LINALG: Final = "aten/src/ATen/native/BatchLinearAlgebra.cpp"
_SOLVE: Final = f"{_LINALG}, cuda/linalg/BatchLinearAlgebraLibBlas.cpp"
_POINTER: Final = 8
_INDEX: Final = 8

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
    places = call.alloc_temp(rows * _INDEX)
    if count > 1:
        call.alloc_temp(count * rows * _INDEX)
        call.free_temp(places)
    call.alloc_contiguous(pivots)
