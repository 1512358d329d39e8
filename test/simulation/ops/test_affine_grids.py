"""Temporaries of grids of affine maps."""

from __future__ import annotations

import pytest
from support.computed_or_dry import computed_or_dry
from support.op_memory import events, randn
from torch.nn import functional

pytestmark = pytest.mark.usefixtures("no_values_in_dry_runs")


@computed_or_dry
@pytest.mark.parametrize("align_corners", [True, False])
def test_a_grid_of_affine_maps_is_a_product_with_a_base_grid(align_corners, compute):
    def grids(theta):
        return functional.affine_grid(theta, (2, 1, 4, 5), align_corners=align_corners)

    def steps(count):
        size = count * 4
        return [size, -size] if align_corners else [size, size, size, -size, -size, -size]

    found = events(grids, lambda: randn(2, 2, 3), compute=compute)
    base = 2 * 4 * 5 * 3 * 4
    assert found == [base, *steps(5), *steps(4), 2 * 4 * 5 * 2 * 4, 8519680, -base]


@computed_or_dry
def test_maps_that_cublas_cannot_read_are_copied(compute):
    def grids(theta):
        return functional.affine_grid(theta, (2, 1, 1, 1, 1), align_corners=False)

    found = events(grids, lambda: randn(2, 6, 8)[:, ::2, ::2], compute=compute)
    base, copy = 2 * 4 * 4, 2 * 12 * 4
    assert found == [base, 4, -4, 4, -4, 4, -4, 2 * 3 * 4, copy, 8519680, -copy, -base]
