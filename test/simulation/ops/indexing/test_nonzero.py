"""Temporaries of `nonzero`, and of what selects by a mask."""

from __future__ import annotations

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from support.op_memory import aten, events, indices, randn, temporaries, tiles_of

from pytorch_memlab.simulation import simulate
from pytorch_memlab.simulation.hardware.presets import PRESETS
from pytorch_memlab.simulation.machine.torch_release import RELEASE
from pytorch_memlab.simulation.ops.core import cub


def nonzero_of_a_thousand(found):
    """The memory for counting, then finding: a count, one block of threads, states of tiles."""
    return [4, *temporaries(1)], [found, *temporaries(tiles_of(1000, 128 * 5))]


@pytest.mark.parametrize(
    ("gpu", "blocks", "tile"),
    [
        ("a100", 108 * 8 * 5, 384 * 6),
        ("t4", 40 * 4 * 5, 128 * 5),
        ("l40s", 142 * 6 * 5, 128 * 5),
        ("h100", 132 * 8 * 5, 384 * 11),
        ("b200", 148 * 8 * 5, 320 * 11),
    ],
)
def test_nonzero_counts_before_it_finds(gpu, blocks, tile):
    sums = -(-blocks * 4 // 256) * 256 + 255
    states = (-(-100_000 // tile) + 32) * 8
    tiles = -(-states // 256) * 256 + 255
    found = events(torch.nonzero, lambda: indices(1000, 100, below=2), gpu=gpu)
    assert found == [4, sums, -sums, 50_000 * 2 * 8, tiles, -tiles, -4]
    assert cub.reduce(PRESETS[gpu], 4096, 4) == 1  # by one block of threads
    assert cub.reduce(PRESETS[gpu], 4097, 4) == sums


@pytest.mark.parametrize(("gpu", "blocks"), [("a100", 2 * 108), ("t4", 2 * 40)])
def test_nonzero_of_a_known_size_sums_blocks(gpu, blocks):
    make = lambda: torch.zeros(blocks * 8192 * 3, dtype=torch.bool, device="cuda")  # noqa: E731
    call = lambda mask: torch.nonzero_static(mask, size=50)  # noqa: E731
    found = events(call, make, gpu=gpu, compute=False)
    assert found == [50 * 8, *temporaries(blocks * 4, blocks * 8)]


def test_a_mask_is_made_into_indices_first():
    before, after = nonzero_of_a_thousand(500 * 2 * 8)
    mask = lambda: indices(50, 20, below=2) > 0  # noqa: E731
    found = events(lambda x, m: x[m], lambda: randn(50, 20), mask)
    assert found == [*before, -4, *after, 500 * 4, -500 * 2 * 8]
    assert events(torch.masked_select, lambda: randn(50, 20), mask) == found


def test_a_mask_is_filled_without_indices():
    mask = lambda: indices(50, 20, below=2) > 0  # noqa: E731
    assert events(lambda x, m: x.__setitem__(m, 1.0), lambda: randn(50, 20), mask) == []


def test_values_under_a_mask_need_indices():
    before, after = nonzero_of_a_thousand(500 * 2 * 8)
    mask = lambda: indices(50, 20, below=2) > 0  # noqa: E731
    put = lambda x, m, v: x.__setitem__(m, v)  # noqa: E731
    found = events(put, lambda: randn(50, 20), mask, lambda: randn(500))
    assert found == [*before, -4, *after, -500 * 2 * 8]


def test_a_masked_scatter_numbers_every_element():
    storage = tiles_of(81, 128 * 7, 16)
    found = events(
        lambda x, m, s: x.masked_scatter_(m, s),
        lambda: randn(9, 9),
        lambda: indices(9) > 4,
        lambda: randn(81),
    )
    assert found == [648, 81, storage, -storage, -81, -648]


pytestmark = pytest.mark.usefixtures("no_values_in_dry_runs")


def test_a_mask_wider_than_what_it_scatters_into_widens_it():
    make = [lambda: randn(9), lambda: indices(9, 9) > 4, lambda: randn(81)]
    found = events(torch.masked_scatter, *make)
    assert found[:2] == [324, 648]


def test_the_gradient_of_what_is_scattered_is_what_the_mask_selects():
    def gradient(g, mask):
        return aten.masked_scatter_backward(g, mask, [50])

    make = [lambda: randn(10, 10), lambda: indices(10, 10) > 4]
    found = events(gradient, *make)
    assert found == events(torch.masked_select, *make)
    assert 50 * 2 * 8 in found


@pytest.mark.skipif(RELEASE < (2, 7), reason="torch 2.6 lays the places out row by row")
@computed_or_dry
def test_a_known_number_of_places_lies_as_that_of_nonzero(compute):
    with simulate("a100", compute=compute):
        mask = torch.arange(20, device="cuda").view(4, 5) % 3 == 0
        assert torch.nonzero_static(mask, size=7).stride() == (1, 7)
