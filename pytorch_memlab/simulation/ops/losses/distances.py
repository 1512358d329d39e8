"""Distances of all pairs: the norms and the augmented matrices whose product they are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from ..memory_model import Basis, Entry
from ..reduction_workspace import stage_sum

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..op_call import OpCall

_MOST_ROWS: Final = 25
"""Rows up to which distances are computed one by one."""


def augment(call: OpCall) -> None:
    """``_euclidean_dist``, before its result: each matrix with its squared norms and ones."""
    matrices: tuple[torch.Tensor, torch.Tensor] = (call.args[0], call.args[1])
    columns = []
    for matrix in matrices:
        squares = call.alloc_temp(matrix.numel() * matrix.element_size())
        rows = matrix.numel() // max(1, matrix.shape[-1]) * matrix.element_size()
        columns += [call.alloc_temp(rows)]
        stage_sum(call, matrix, -1)
        call.free_temp(squares)
        columns += [call.alloc_temp(rows)]
    for matrix, pair in zip(matrices, (columns[:2], columns[2:]), strict=True):
        width, size = matrix.shape[-1], matrix.element_size()
        rows = matrix.numel() // max(1, width)
        scaled = [call.alloc_temp(rows * width * size)] if matrix is matrices[0] else []
        call.alloc_temp(rows * (width + 2) * size)
        for allocation in (*scaled, *pair):
            call.free_temp(allocation)


def multiply(call: OpCall) -> None:
    """``_euclidean_dist``: a product of matrices."""
    call.ensure_cublas_workspace()


def augment_if_large(call: OpCall) -> None:
    """``_cdist_forward``, before its result: Euclidean distances of many rows are a product."""
    if _is_product(call):
        augment(call)


def multiply_if_large(call: OpCall) -> None:
    """``_cdist_forward``: a product of matrices, or contiguous inputs."""
    if _is_product(call):
        multiply(call)
    else:
        call.alloc_contiguous(*call.args[:2])


def gradient_inputs(call: OpCall) -> None:
    """``_cdist_backward``, before its result: contiguous inputs, as many batches of each."""
    gradient, first, second, _, distances = call.args[:5]
    batch = torch.broadcast_shapes(first.shape[:-2], second.shape[:-2])
    if first.numel() and second.numel():
        expanded = (one.expand(*batch, *one.shape[-2:]) for one in (first, second))
        call.alloc_contiguous(*expanded, distances, gradient)


def gradient(call: OpCall) -> None:
    """``_cdist_backward``: the share of each pair of points, which are added up."""
    gradients, first, second, order = call.args[:4]
    if order and gradients.numel() and first.numel() and second.numel():
        rows, columns = first.shape[-2:]
        batch = call.result.numel() // (rows * columns)
        _add_up(call, (batch, second.shape[-2], rows, columns), 1)


def gradient_within(call: OpCall) -> None:
    """``_pdist_backward``: the share of each pair of points, which are added up."""
    gradients, points, order = call.args[:3]
    if order and gradients.numel() and points.numel():
        rows, columns = points.shape
        _add_up(call, (rows - 1, rows, columns), 0)


def _add_up(call: OpCall, shape: tuple[int, ...], dim: int) -> None:
    shares = torch.empty(shape, dtype=call.result.dtype, device="meta")
    call.alloc_copy(shares)
    stage_sum(call, shares, dim)


def _is_product(call: OpCall) -> bool:
    first, second, order, mode = (*call.args, None)[:4]
    many = first.shape[-2] > _MOST_ROWS or second.shape[-2] > _MOST_ROWS
    return bool(order == 2 and (mode == 1 or (mode in (None, 0) and many)))


_DISTANCE: Final = "aten/src/ATen/native/Distance.cpp"
_PAIRS: Final = "aten/src/ATen/native/cuda/DistanceKernel.cu"

ENTRIES: Final[Mapping[str, Entry]] = {
    "aten::_euclidean_dist": Entry(multiply, _DISTANCE, Basis.SOURCE, augment),
    "aten::_cdist_forward": Entry(multiply_if_large, _DISTANCE, Basis.ESTIMATE, augment_if_large),
    "aten::_cdist_backward": Entry(gradient, _PAIRS, Basis.SOURCE, gradient_inputs),
    "aten::_pdist_backward": Entry(gradient_within, _PAIRS, Basis.SOURCE),
}
