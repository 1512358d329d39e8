"""Grids of affine maps: the base grid, the steps along its sides, and a product of matrices."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final

import torch

from ..matmul.cublas import multiply_batches
from ..memory_model import Basis, Entry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..op_call import OpCall


def base_grid(call: OpCall) -> None:
    """``affine_grid_generator``, before its result: the base grid, side by side."""
    theta, size, align_corners = call.args[:3]
    batch, _, *sides = size
    width = theta.element_size()
    call.alloc_temp(batch * prod(sides) * (len(sides) + 1) * width)
    for side in reversed(sides):
        _steps(call, side, width, align_corners)


def _steps(call: OpCall, count: int, width: int, align_corners: bool) -> None:
    """Take the steps along one side, and give them back."""
    with call.scope():
        steps = call.alloc_temp(max(1, count) * width)
        if count > 1 and not align_corners:
            multiplied = call.alloc_temp(count * width)
            call.alloc_temp(count * width)
            call.free_temp(steps)
            call.free_temp(multiplied)


def multiply(call: OpCall) -> None:
    """``affine_grid_generator``: a product of matrices, the base grid with each map."""
    theta, size = call.args[:2]
    batch, _, *sides = size
    grid = torch.empty((batch, prod(sides), len(sides) + 1), device="meta")
    product = call.result.view(batch, -1, len(sides))
    multiply_batches(call, grid, theta.transpose(1, 2), product)


_GRID: Final = "aten/src/ATen/native/AffineGridGenerator.cpp"

ENTRIES: Final[Mapping[str, Entry]] = {
    "aten::affine_grid_generator": Entry(multiply, _GRID, Basis.SOURCE, base_grid),
}
