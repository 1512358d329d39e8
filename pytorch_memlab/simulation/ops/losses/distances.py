"""Distances of all pairs: the norms and the augmented matrices whose product they are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from ..memory_model import Basis, Entry
from ..reduction_workspace import stage_sum

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..op_call import Launch

_MOST_ROWS: Final = 25
"""Rows up to which distances are computed one by one."""


def augment(launch: Launch) -> None:
    """``_euclidean_dist``, before its result: each matrix with its squared norms and ones."""
    matrices: tuple[torch.Tensor, torch.Tensor] = (launch.args[0], launch.args[1])
    columns = []
    for matrix in matrices:
        squares = launch.borrow(matrix.numel() * matrix.element_size())
        rows = matrix.numel() // max(1, matrix.shape[-1]) * matrix.element_size()
        columns += [launch.borrow(rows)]
        stage_sum(launch, matrix, -1)
        launch.give_back(squares)
        columns += [launch.borrow(rows)]
    for matrix, pair in zip(matrices, (columns[:2], columns[2:]), strict=True):
        width, size = matrix.shape[-1], matrix.element_size()
        rows = matrix.numel() // max(1, width)
        scaled = [launch.borrow(rows * width * size)] if matrix is matrices[0] else []
        launch.borrow(rows * (width + 2) * size)
        for placement in (*scaled, *pair):
            launch.give_back(placement)


def multiply(launch: Launch) -> None:
    """``_euclidean_dist``: a product of matrices."""
    launch.need_cublas()


def augment_if_large(launch: Launch) -> None:
    """``_cdist_forward``, before its result: Euclidean distances of many rows are a product."""
    if _is_product(launch):
        augment(launch)


def multiply_if_large(launch: Launch) -> None:
    """``_cdist_forward``: a product of matrices, or contiguous inputs."""
    if _is_product(launch):
        multiply(launch)
    else:
        launch.contiguous(*launch.args[:2])


def gradient_inputs(launch: Launch) -> None:
    """``_cdist_backward``, before its result: contiguous inputs, as many batches of each."""
    gradient, first, second, _, distances = launch.args[:5]
    batch = torch.broadcast_shapes(first.shape[:-2], second.shape[:-2])
    if first.numel() and second.numel():
        expanded = (one.expand(*batch, *one.shape[-2:]) for one in (first, second))
        launch.contiguous(*expanded, distances, gradient)


def gradient(launch: Launch) -> None:
    """``_cdist_backward``: the share of each pair of points, which are added up."""
    gradients, first, second, order = launch.args[:4]
    if order and gradients.numel() and first.numel() and second.numel():
        rows, columns = first.shape[-2:]
        batch = launch.result.numel() // (rows * columns)
        _add_up(launch, (batch, second.shape[-2], rows, columns), 1)


def gradient_within(launch: Launch) -> None:
    """``_pdist_backward``: the share of each pair of points, which are added up."""
    gradients, points, order = launch.args[:3]
    if order and gradients.numel() and points.numel():
        rows, columns = points.shape
        _add_up(launch, (rows - 1, rows, columns), 0)


def _add_up(launch: Launch, shape: tuple[int, ...], dim: int) -> None:
    shares = torch.empty(shape, dtype=launch.result.dtype, device="meta")
    launch.copy(shares)
    stage_sum(launch, shares, dim)


def _is_product(launch: Launch) -> bool:
    first, second, order, mode = (*launch.args, None)[:4]
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
