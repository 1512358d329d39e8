"""Temporaries of distances between points, and of their gradients."""

from __future__ import annotations

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from support.op_memory import aten, events, randn


def test_pairs_of_points_are_measured_by_a_product():
    found = events(torch.cdist, lambda: randn(100, 3), lambda: randn(50, 3))
    squares = [1200, 400, -1200, 400, 600, 200, -600, 200]
    joined = [1200, 100 * 5 * 4, -400, -400, -1200, 50 * 5 * 4, -200, -200]
    assert found == [*squares, *joined, 100 * 50 * 4, 8519680, -1000, -2000]
    assert events(torch.cdist, lambda: randn(25, 3), lambda: randn(25, 3)) == [2500]


pytestmark = pytest.mark.usefixtures("no_values_in_dry_runs")


@computed_or_dry
def test_the_gradient_of_distances_adds_up_each_pair(compute):
    def gradient(g, x, y, d):
        return aten._cdist_backward(g, x, y, 1.0, d)

    make = [
        lambda: randn(50, 40),
        lambda: randn(50, 3),
        lambda: randn(40, 3),
        lambda: randn(50, 40),
    ]
    pairs = 40 * 50 * 3 * 4
    found = events(gradient, *make, compute=compute)
    assert found == [600, pairs, -pairs]
    apart = [lambda: randn(40, 50).t(), *make[1:]]
    found = events(gradient, *apart, compute=compute)
    assert found == [8000, 600, pairs, -pairs, -8000]

    def none(g, x, y, d):
        return aten._cdist_backward(g, x, y, 0.0, d)

    assert events(none, *make, compute=compute) == [600]


@computed_or_dry
def test_the_gradient_of_distances_within_adds_up_each_pair(compute):
    def gradient(g, x, d):
        return aten._pdist_backward(g, x, 2.0, d)

    make = [lambda: randn(45), lambda: randn(10, 3), lambda: randn(45).abs()]
    pairs = 9 * 10 * 3 * 4
    assert events(gradient, *make, compute=compute) == [
        120,
        pairs,
        -pairs,
    ]
    assert events(torch.pdist, lambda: randn(10, 3), compute=compute) == [180]


def test_batches_of_points_are_expanded_to_each_other_first():
    found = events(torch.cdist, lambda: randn(2, 30, 3), lambda: randn(30, 3))
    alone = events(torch.cdist, lambda: randn(2, 30, 3), lambda: randn(2, 30, 3))
    assert found == [2 * 30 * 3 * 4, *alone, -2 * 30 * 3 * 4]
