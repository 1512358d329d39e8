"""Distances of all pairs: ``cdist`` and ``pdist``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from ..reduction_workspace import alloc_sum_workspace
from ..registry import Provenance, op

if TYPE_CHECKING:
    from ..op_call import OpCall

_MOST_ROWS: Final = 25
"""Rows up to which distances are computed one by one."""

_DISTANCE: Final = "aten/src/ATen/native/Distance.cpp"
_PAIRS: Final = "aten/src/ATen/native/cuda/DistanceKernel.cu"


@op("aten::_euclidean_dist", source=_DISTANCE)
def _euclidean_dist(call: OpCall) -> None:
    """A product of matrices, each augmented by its squared norms and ones."""
    matrices: tuple[torch.Tensor, torch.Tensor] = (call.args[0], call.args[1])
    columns = []
    for matrix in matrices:
        squares = call.alloc_temp(matrix.numel() * matrix.element_size())
        rows = matrix.numel() // max(1, matrix.shape[-1]) * matrix.element_size()
        columns += [call.alloc_temp(rows)]
        alloc_sum_workspace(call, matrix, -1)
        call.free_temp(squares)
        columns += [call.alloc_temp(rows)]
    for matrix, pair in zip(matrices, (columns[:2], columns[2:]), strict=True):
        width, size = matrix.shape[-1], matrix.element_size()
        rows = matrix.numel() // max(1, width)
        scaled = [call.alloc_temp(rows * width * size)] if matrix is matrices[0] else []
        call.alloc_temp(rows * (width + 2) * size)
        for allocation in (*scaled, *pair):
            call.free_temp(allocation)
    call.alloc_outputs()
    call.ensure_cublas_workspace()


@op("aten::_cdist_forward", provenance=Provenance.ESTIMATE, source=_DISTANCE)
def _cdist_forward(call: OpCall) -> None:
    """Euclidean distances of many rows are a product of matrices."""
    if _is_product(call):
        _euclidean_dist(call)
    else:
        call.alloc_outputs()
        call.alloc_contiguous(*call.args[:2])


@op("aten::_cdist_backward", source=_PAIRS)
def _cdist_backward(call: OpCall) -> None:
    """Contiguous inputs, and the gradient of each pair, which are summed."""
    grad_output, first, second, p, distances = call.args[:5]
    if not first.numel() or not second.numel():
        return
    batch = torch.broadcast_shapes(first.shape[:-2], second.shape[:-2])
    expanded = (one.expand(*batch, *one.shape[-2:]) for one in (first, second))
    call.alloc_contiguous(*expanded, distances, grad_output)
    call.alloc_outputs()
    if p and grad_output.numel():
        rows, columns = first.shape[-2:]
        batches = call.result.numel() // (rows * columns)
        _sum_pairs(call, (batches, second.shape[-2], rows, columns), 1)


@op("aten::_pdist_backward", source=_PAIRS)
def _pdist_backward(call: OpCall) -> None:
    """The gradient of each pair, which are summed."""
    call.alloc_outputs()
    grad_output, points, p = call.args[:3]
    if p and grad_output.numel() and points.numel():
        rows, columns = points.shape
        _sum_pairs(call, (rows - 1, rows, columns), 0)


def _sum_pairs(call: OpCall, shape: tuple[int, ...], dim: int) -> None:
    pairs = torch.empty(shape, dtype=call.result.dtype, device="meta")
    call.alloc_copy(pairs)
    alloc_sum_workspace(call, pairs, dim)


def _is_product(call: OpCall) -> bool:
    first, second, order, mode = (*call.args, None)[:4]
    many = first.shape[-2] > _MOST_ROWS or second.shape[-2] > _MOST_ROWS
    return bool(order == 2 and (mode == 1 or (mode in (None, 0) and many)))
