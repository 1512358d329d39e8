"""Temporaries of searches in sorted numbers, and of repetitions."""

from __future__ import annotations

import torch
from support.op_memory import aten, events, indices, randn, temporaries, tiles_of


def test_repetitions_are_added_up_and_checked():
    storage = tiles_of(100, 128 * 7, 16)
    call = torch.repeat_interleave
    found = events(lambda r: aten.repeat_interleave.Tensor(r), lambda: indices(100))
    assert found == [800, *temporaries(storage), -800, 800, 100, 1, -1, -100, 450 * 8, -800]
    known = events(lambda r: call(r, output_size=450), lambda: indices(100))
    assert known == [800, *temporaries(storage), -800, 800, 450 * 8, -800]


def test_buckets_are_searched_in_one_type():
    found = events(torch.bucketize, lambda: randn(9).double(), lambda: randn(5))
    assert found == [72, 40, -40]


def test_buckets_are_searched_for_values_that_lie_in_order():
    found = events(torch.bucketize, lambda: randn(50, 40).t(), lambda: randn(5))
    assert found == [16000, 8000, -8000]
