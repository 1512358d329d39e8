"""Temporaries of losses."""

from __future__ import annotations

import pytest
from support.computed_or_dry import computed_or_dry
from support.op_memory import aten, events, indices, randn, temporaries
from torch.nn import functional


@pytest.mark.parametrize("loss", [functional.mse_loss, functional.smooth_l1_loss])
@pytest.mark.parametrize("gpu", ["a100", "t4"])
@computed_or_dry
def test_a_loss_of_pairs_keeps_that_of_each_element(loss, gpu, compute):
    make = [lambda: randn(500, 500), lambda: randn(500, 500)]
    each = 500 * 500 * 4
    found = events(loss, *make, gpu=gpu, compute=compute)
    # Its result was resized to one element, and keeps its memory. 512 threads that add up 16
    # elements each make 31 blocks.
    assert found == [each, each, *temporaries(31 * 4, 4), -each]
    unreduced = events(lambda x, y: loss(x, y, reduction="none"), *make, compute=compute)
    assert unreduced == [each]


def test_a_huber_loss_makes_its_result_last():
    found = events(functional.huber_loss, lambda: randn(9, 9), lambda: randn(9))
    assert found == [324, 4, -324]


@computed_or_dry
def test_a_binary_cross_entropy_reduces_into_a_number(compute):
    make = [lambda: randn(500, 500).sigmoid(), lambda: randn(500, 500).sigmoid()]
    found = events(functional.binary_cross_entropy, *make, compute=compute)
    assert found == [10**6, 4, *temporaries(31 * 4, 4), -4]


@pytest.mark.parametrize("weighted", [False, True])
def test_a_binary_cross_entropy_of_logits_keeps_two_terms(weighted):
    def loss(x, y, w):
        pos_weight = w if weighted else None
        return functional.binary_cross_entropy_with_logits(x, y, pos_weight=pos_weight)

    found = events(loss, lambda: randn(8, 8), lambda: randn(8, 8), lambda: randn(8))
    extra = [32, 256, -32, -256] if weighted else []
    assert found == [256, *extra, 256, 4, -256, -256]


def test_a_likelihood_takes_nothing_of_contiguous_inputs():
    def loss(x, y):
        return aten.nll_loss_forward(x, y, None, 1, -100)

    assert events(loss, lambda: randn(8, 10), lambda: indices(8)) == [4, 4]
    assert events(loss, lambda: randn(10, 8).t(), lambda: indices(8)) == [4, 4, 320, -320]

    def images(x, y):
        return aten.nll_loss2d_forward(x, y, None, 1, -100)

    assert events(images, lambda: randn(2, 10, 3, 3), lambda: indices(2, 3, 3)) == [4, 4]
