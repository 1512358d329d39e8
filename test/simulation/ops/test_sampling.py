"""Temporaries of samples and of noise."""

from __future__ import annotations

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from support.op_memory import aten, events, randn, storage_of, temporaries


def test_a_sample_is_the_largest_of_random_quotients():
    found = events(lambda x: x.multinomial(1), lambda: randn(4, 1000).abs())
    checks = [4, 4, 1, 1, 1, -1, -1, 16, 4, 1, -4, -16, 1, -1]
    assert found == [32, *checks, 16000, -16000, -1, -1, -4, -4]
    # Several blocks look for the largest quotient of a long row.
    _, *workspaces = events(lambda x: x.argmax(dim=0), lambda: randn(2**18))
    long = events(lambda x: x.multinomial(1), lambda: randn(2**18).abs())
    assert workspaces[0] > 0
    assert long[-len(workspaces) - 6 :] == [2**20, *workspaces, -(2**20), -1, -1, -4, -4]
    many = events(lambda x: x.multinomial(9, replacement=True), lambda: randn(4, 1000).abs())
    assert many == [4 * 9 * 8, *temporaries(16000, 16000, 16000)]


def test_a_permutation_sorts_random_keys():
    count = 100_000
    tiles = -(-count // (384 * 10))
    several = storage_of(5 * 256 * 8, tiles * 256 * 4, count * 8, count * 8, 5 * 4)
    for count, key, storage in ((1000, 4, 1), (100_000, 8, several)):
        found = events(lambda n=count: torch.randperm(n, device="cuda"))
        expected = temporaries(count * 8, count * key, count * key, storage)
        assert found == [count * 8, *expected]


pytestmark = pytest.mark.usefixtures("no_values_in_dry_runs")


@computed_or_dry
def test_samples_of_a_distribution_of_distributions_are_divided_by_their_sums(compute):
    found = events(torch._sample_dirichlet, lambda: randn(50, 4).abs(), compute=compute)
    assert found == [800, 200, -200]
    assert events(torch._standard_gamma, lambda: randn(50).abs(), compute=compute) == [200]


@computed_or_dry
def test_noise_that_lies_apart_is_copied(compute):
    def leak(x, noise):
        return aten.rrelu_with_noise(x, noise, 0.1, 0.3, True)

    make = [lambda: randn(8, 4).t(), lambda: randn(4, 8)]
    assert events(leak, *make, compute=compute) == [128, 128, -128]

    def still(x, noise):
        return aten.rrelu_with_noise(x, noise, 0.1, 0.3, False)

    assert events(still, *make, compute=compute) == [128]
