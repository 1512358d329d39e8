"""Distances of all pairs: the norms and the augmented matrices whose product they are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .entry import Basis, Entry
from .staging import stage_sum

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from .launch import Launch

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


def _is_product(launch: Launch) -> bool:
    first, second, order, mode = (*launch.args, None)[:4]
    many = first.shape[-2] > _MOST_ROWS or second.shape[-2] > _MOST_ROWS
    return bool(order == 2 and (mode == 1 or (mode in (None, 0) and many)))


_DISTANCE: Final = "aten/src/ATen/native/Distance.cpp"

ENTRIES: Final[Mapping[str, Entry]] = {
    "aten::_euclidean_dist": Entry(multiply, _DISTANCE, Basis.SOURCE, augment),
    "aten::_cdist_forward": Entry(multiply_if_large, _DISTANCE, Basis.ESTIMATE, augment_if_large),
}
