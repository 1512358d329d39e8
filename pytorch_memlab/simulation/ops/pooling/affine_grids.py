"""Grids of affine maps: the base grid, the steps along its sides, and a product of matrices."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import torch

from ..matmul.cublas import multiply_batches
from ..registry import op

if TYPE_CHECKING:
    from ..op_call import OpCall


@op("aten::affine_grid_generator", source="aten/src/ATen/native/AffineGridGenerator.cpp")
def _memory(call: OpCall) -> None:
    """The base grid, and its product with each map."""
    theta, size, align_corners = call.args[:3]
    batch, _, *sides = size
    width = theta.element_size()
    call.alloc_temp(batch * prod(sides) * (len(sides) + 1) * width)
    for side in reversed(sides):
        _alloc_steps(call, side, width, align_corners)
    call.alloc_outputs()
    grid = torch.empty((batch, prod(sides), len(sides) + 1), device="meta")
    product = call.result.view(batch, -1, len(sides))
    multiply_batches(call, grid, theta.transpose(1, 2), product)


def _alloc_steps(call: OpCall, count: int, width: int, align_corners: bool) -> None:
    """The steps along one side."""
    with call.scope():
        steps = call.alloc_temp(max(1, count) * width)
        if count > 1 and not align_corners:
            multiplied = call.alloc_temp(count * width)
            call.alloc_temp(count * width)
            call.free_temp(steps)
            call.free_temp(multiplied)
