"""Temporaries of scans: sums and products that run along a dimension."""

from __future__ import annotations

import pytest
import torch
from support.op_memory import events, randn, temporaries

RESULTS = 2
"""Results of a sort: values and indices."""


def taken(call, *make, results=RESULTS, **options):
    """The requests and frees of a call after its results are made."""
    return events(call, *make, **options)[results:]


def test_a_scan_of_one_row_stores_the_states_of_its_tiles():
    states = (-(-100_000 // (128 * 15)) + 32) * 8
    storage = -(-states // 256) * 256 + 255
    found = taken(lambda x: x.cumsum(0), lambda: randn(100_000), results=1)
    assert found == temporaries(storage)
    assert taken(lambda x: x.cumsum(1), lambda: randn(100, 100), results=1) == []
    assert taken(lambda x: x.cumprod(0), lambda: randn(50, 40).t(), results=1) == temporaries(8000)


@pytest.mark.parametrize("last", [2**30, 100_000])
def test_a_long_row_is_scanned_in_parts_of_2_to_the_30(last):
    def storage(count):
        states = (-(-count // (128 * 30)) + 32) * 4
        return -(-states // 256) * 256 + 255

    count = 2**30 + last
    found = taken(
        lambda x: x.cumsum(0, dtype=torch.int8),
        lambda: torch.empty(count, dtype=torch.int8, device="cuda"),
        results=1,
        compute=False,
    )
    # Each part after the first has the sum of those before it, too.
    assert found == [*temporaries(storage(2**30)), *temporaries(1, storage(last))]


def test_a_scan_in_place_of_what_is_not_contiguous_copies_it_twice():
    found = events(lambda x: x.cumsum_(1), lambda: randn(50, 40).t())
    assert found == temporaries(8000, 8000)  # the result, and what is read


def test_a_scan_casts_first():
    found = taken(lambda x: x.cumsum(1), lambda: randn(50, 40).int(), results=1)
    assert found == temporaries(50 * 40 * 8)


@pytest.mark.parametrize(("gpu", "blocks"), [("a100", 108), ("t4", 40)])
def test_a_deterministic_sum_keeps_one_number_for_each_block(gpu, blocks):
    torch.use_deterministic_algorithms(True)
    try:
        make = lambda: randn(2**20)  # noqa: E731
        assert taken(lambda x: x.cumsum(0), make, results=1, gpu=gpu) == temporaries(blocks * 4)
        assert taken(lambda x: x.cumsum(0), lambda: randn(8192), results=1) == temporaries(4)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_running_extremes_copy_what_is_not_contiguous(name):
    call = lambda x: getattr(x, name)(0)  # noqa: E731
    assert events(call, lambda: randn(50, 40)) == [8000, 16000]
    assert events(call, lambda: randn(50, 40).t()) == [8000, 16000, 8000, -8000]
