"""Temporaries of losses of margins."""

from __future__ import annotations

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from support.op_memory import aten, events, indices, randn, temporaries
from torch.nn import functional

pytestmark = pytest.mark.usefixtures("no_values_in_dry_runs")


def number():
    return randn(1).squeeze()


@computed_or_dry
@pytest.mark.parametrize(
    ("count", "staged"),
    [(100, []), (10**6, [123 * 4, 4])],  # 512 threads with 16 losses each make 123 blocks
)
def test_a_margin_of_classes_adds_up_the_loss_of_each_sample(count, staged, compute):
    def loss(x, y):
        return functional.multi_margin_loss(x, y)

    make = [lambda: randn(count, 2), lambda: indices(count, below=2)]
    found = events(loss, *make, compute=compute)
    assert found == [4, count * 4, *temporaries(*staged), -count * 4]


@computed_or_dry
def test_a_margin_of_classes_copies_what_does_not_lie_in_rows(compute):
    def unreduced(x, y, w):
        return functional.multi_margin_loss(x, y, weight=w, reduction="none")

    make = [lambda: randn(3, 8).t(), lambda: indices(16, below=3)[::2], lambda: randn(6).abs()[::2]]
    assert events(unreduced, *make, compute=compute) == [32, 96, 64, 12, -12, -64, -96]

    def gradient(g, x, y):
        return aten.multi_margin_loss_backward(g, x, y, 1, 1, None, 0)

    make = [lambda: randn(16)[::2], lambda: randn(3, 8).t(), lambda: indices(8, below=3)]
    assert events(gradient, *make, compute=compute) == [96, 96, 32, -32, -96]
    assert events(lambda x, y: unreduced(x, y, None), lambda: randn(3), lambda: indices(1)) == [4]


@computed_or_dry
def test_a_margin_of_labels_makes_its_loss_last(compute):
    def loss(x, y, reduction):
        return aten.multilabel_margin_loss_forward(x, y, reduction)

    make = [lambda: randn(8, 4), lambda: indices(8, 4, below=4)]
    found = events(lambda x, y: loss(x, y, 1), *make, compute=compute)
    assert found == [8 * 4 * 4, 8 * 4, 4, -8 * 4]
    assert events(lambda x, y: loss(x, y, 0), *make, compute=compute) == [8 * 4 * 4, 8 * 4]
    apart = [lambda: randn(4, 8).t(), lambda: indices(4, 8, below=4).t()]
    found = events(lambda x, y: loss(x, y, 0), *apart, compute=compute)
    assert found == [128, 256, 128, 32, -256, -128]
    single = [lambda: randn(4), lambda: indices(4)]
    assert events(lambda x, y: loss(x, y, 1), *single, compute=compute) == [16, 4]


@computed_or_dry
def test_the_gradient_of_a_margin_of_labels_copies_what_does_not_lie_in_rows(compute):
    def gradient(g, x, y, of):
        return aten.multilabel_margin_loss_backward(g, x, y, 1, of)

    make = [
        number,
        lambda: randn(4, 8).t(),
        lambda: indices(4, 8, below=4).t(),
        lambda: torch.zeros(4, 8, device="cuda").t(),
    ]
    found = events(gradient, *make, compute=compute)
    assert found == [128, 128, 256, 128, -128, -256, -128]


@computed_or_dry
def test_a_soft_margin_reduces_into_the_losses_of_its_elements(compute):
    make = [lambda: randn(500, 500), lambda: randn(500, 500).sign()]
    found = events(functional.soft_margin_loss, *make, compute=compute)
    assert found == [10**6, 4, *temporaries(31 * 4, 4), -4]

    def unreduced(x, y):
        return functional.soft_margin_loss(x, y, reduction="none")

    assert events(unreduced, *make, compute=compute) == [10**6]


@computed_or_dry
def test_the_gradient_of_a_soft_margin_is_made_of_exponentials(compute):
    def gradient(g, x, y):
        return aten.soft_margin_loss_backward(g, x, y, 1)

    make = [number, lambda: randn(4, 8), lambda: randn(4, 8).sign()]
    found = events(gradient, *make, compute=compute)
    assert found == [128, 128, 128, -128, -128, 128, -128]
