"""Temporaries of bilinear layers."""

from __future__ import annotations

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from support.op_memory import events, randn

pytestmark = pytest.mark.usefixtures("no_values_in_dry_runs")


WORKSPACE = 8519680
"""Bytes of a cuBLAS workspace, which is kept."""


@computed_or_dry
def test_a_bilinear_layer_multiplies_slice_by_slice(compute):
    def multiply(x, w, y):
        return torch.nn.functional.bilinear(x, y, w)

    make = [lambda: randn(6, 5), lambda: randn(3, 5, 4), lambda: randn(6, 4)]
    # Each slice: 6 x 5 by 5 x 4, whose rows are multiplied with those of 6 x 4 and added up.
    products, sums = 6 * 4 * 4, 6 * 4
    found = events(multiply, *make, compute=compute)
    once = [products, sums, -products, -sums]
    assert found == [6 * 3 * 4, products, WORKSPACE, *once[1:], *once, *once]
    apart = [lambda: randn(12, 5)[::2], *make[1:]]
    assert events(multiply, *apart, compute=compute) == found
    turned = [lambda: randn(6, 10)[:, ::2], *make[1:]]
    copied = [products, 6 * 5 * 4, -6 * 5 * 4, *once[1:]]
    first = [products, 6 * 5 * 4, WORKSPACE, -6 * 5 * 4, *once[1:]]
    assert events(multiply, *turned, compute=compute) == [72, *first, *copied, *copied]
