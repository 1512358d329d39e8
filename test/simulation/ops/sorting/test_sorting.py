"""Temporaries of sorts, of the search for the largest elements, and of medians."""

from __future__ import annotations

import pytest
import torch
from support.op_memory import events, randn, storage_of, temporaries

from pytorch_memlab.simulation.hardware.presets import PRESETS
from pytorch_memlab.simulation.ops.core import cub
from pytorch_memlab.simulation.ops.sorting import sorting

RESULTS = 2
"""Results of a sort: values and indices."""


def taken(call, *make, results=RESULTS, **options):
    """The requests and frees of a call after its results are made."""
    return events(call, *make, **options)[results:]


def sort_of_floats(count, tile):
    """Storage of a sort of floats with their places: 4 passes of 256 digits, and buffers."""
    return storage_of(4 * 256 * 8, -(-count // tile) * 256 * 4, count * 4, count * 8, 4 * 4)


@pytest.mark.parametrize(
    ("gpu", "count", "size"),
    [
        ("a100", 2304, 1),  # 256 threads with 9 pairs of 16 bytes each sort it in one block
        # 8 passes of 256 digits, tiles of 384 threads by 10 pairs, keys, values, 8 counters
        ("a100", 2305, 8 * 256 * 8 + 256 * 4 + 2 * 18688 + 256 + 255),
        ("h100", 2305, 8 * 256 * 8 + 256 * 4 + 2 * 18688 + 256 + 255),
        ("t4", 2305, 8 * 256 * 8 + 256 * 4 + 2 * 18688 + 256 + 255),
        ("a100", 3841, 8 * 256 * 8 + 2 * 256 * 4 + 2 * 30976 + 256 + 255),
        ("h100", 4609, 8 * 256 * 8 + 2 * 256 * 4 + 2 * 36864 + 2 * 256 + 256 + 255),
    ],
)
def test_a_radix_sort_stores_histograms_and_a_second_buffer(gpu, count, size):
    assert cub.radix_sort(PRESETS[gpu], count, 8, 8) == size


@pytest.mark.parametrize(
    ("gpu", "size", "tile"),
    [
        ("t4", 4, 256 * 9), ("a100", 4, 256 * 15), ("a10", 4, 256 * 9), ("h100", 4, 288 * 14),
        ("b200", 4, 224 * 20), ("rtx5090", 4, 224 * 20), ("rtx4090", 8, 256 * 9),
        ("a100", 8, 224 * 10), ("h100", 8, 224 * 11), ("b200", 8, 256 * 23),
    ],
)  # fmt: skip
def test_a_scan_by_key_has_a_state_and_a_key_for_each_tile(gpu, size, tile):
    for count, tiles in ((tile, 1), (tile + 1, 2), (300 * tile, 300)):
        expected = storage_of((tiles + 32) * 16, (tiles + 1) * size)
        assert cub.scan_by_key(PRESETS[gpu], count, size) == expected


def test_a_scan_keeps_4_bytes_for_a_tile_also_of_elements_of_1_byte():
    tiles = 100
    of_one, of_two, of_four, of_eight = (
        cub.scan(128 * items * tiles, size) for size, items in ((1, 30), (2, 30), (4, 15), (8, 7))
    )
    assert (of_one, of_two) == (768 + 255, 768 + 255)  # 132 states of 4 bytes are 528
    assert (of_four, of_eight) == (1280 + 255, 2304 + 255)
    small = torch.zeros(128 * 30 * tiles, dtype=torch.int8)
    scanned = events(lambda x: torch.cumsum(x, 0, dtype=torch.int8), small.cuda)
    assert scanned == [len(small), 768 + 255, -768 - 255]


@pytest.mark.parametrize("dtype", [torch.float16, torch.uint8])
def test_small_keys_are_sorted_by_blocks_before_hopper(dtype):
    key = dtype.itemsize
    a100, t4 = (cub.radix_sort(PRESETS[gpu], 2**20, key, 8) for gpu in ("a100", "t4"))
    assert a100 > t4 > 2**20 * (key + 8)
    passes = key
    tile, items = (512, 11) if key == 2 else (384, 9)
    blocks = -(-(2**20) // (tile * items))
    buffers = 2**20 * (key + 8) if passes > 1 else 0
    expected = passes * 256 * 8 + blocks * 256 * 4 + buffers + 256 + 255
    assert cub.radix_sort(PRESETS["h100"], 2**20, key, 8) == expected


def test_short_slices_are_sorted_in_place():
    assert taken(torch.sort, lambda: randn(10, 4096)) == temporaries(4096 * 8)
    assert taken(lambda x: x.argsort(stable=True), lambda: randn(4096)) == [
        4096 * 8,
        -4096 * 8,
        -16384,
    ]
    assert taken(torch.sort, lambda: torch.zeros((), device="cuda")) == []


@pytest.mark.parametrize(("gpu", "tile"), [("a100", 384 * 8), ("h100", 384 * 14)])
def test_one_long_slice_is_sorted_with_its_indices(gpu, tile):
    expected = temporaries(4097 * 8, sort_of_floats(4097, tile))
    assert taken(torch.sort, lambda: randn(4097), gpu=gpu) == expected
    storage = sort_of_floats(10**6, tile)
    alone = [storage, -storage] * 3
    assert taken(torch.sort, lambda: randn(3, 10**6), gpu=gpu, compute=False) == [
        8 * 10**6,
        *alone,
        -8 * 10**6,
    ]


@pytest.mark.parametrize(
    ("gpu", "tile", "tile_of_slices"),
    [("a100", 384 * 8, 384 * 10), ("h100", 384 * 14, 384 * 15)],
)
def test_few_slices_are_sorted_all_together_and_then_by_slice(gpu, tile, tile_of_slices):
    count = 127 * 5000
    first = [count * 4, sort_of_floats(count, tile)]
    # One pass over the 7 bits of a slice's number needs no second buffer.
    second = storage_of(256 * 8, -(-count // tile_of_slices) * 256 * 4, 4)
    assert taken(torch.sort, lambda: randn(127, 5000), gpu=gpu, compute=False) == [
        count * 8,
        count * 8,
        *temporaries(*first),
        second,
        -second,
        -count * 8,
        -count * 8,
    ]


def test_many_slices_are_sorted_segment_by_segment():
    count = 128 * 5000
    storage = count * 4 + count * 8 + 255
    expected = temporaries(count * 8, storage)
    assert taken(torch.sort, lambda: randn(128, 5000), compute=False) == expected


def test_slices_that_lie_apart_are_copied():
    count = 200 * 5000
    sorting = temporaries(count * 8, count * 4 + count * 8 + 255)
    copies = [count * 4, count * 4, count * 8]
    found = taken(lambda x: x.sort(0), lambda: randn(5000, 200), compute=False)
    assert found == [*copies, *sorting, -count * 8, -count * 4, -count * 4]


@pytest.mark.parametrize(
    ("slices", "length", "several"),
    [
        (20, 19999, False), (20, 20000, True), (40, 9999, False), (40, 10000, True),
        (80, 8000, True), (199, 4999, False), (199, 5000, True), (800, 800, True),
        (799, 2999, False), (4000, 799, False), (4001, 400, True),
    ],
)  # fmt: skip
def test_topk_takes_several_blocks_for_long_slices(slices, length, several):
    found = taken(lambda x: x.topk(3), lambda: randn(slices, length), compute=False)
    assert bool(found) == several


@pytest.mark.parametrize(("gpu", "items"), [("a100", 4), ("t4", 7)])
def test_topk_counts_digits_in_each_block(gpu, items):
    # 16 slices of 25,000 over SMs by 6 blocks of 256 threads: 4 items a thread at least
    blocks = 16 * -(-25_000 // (items * 256))
    scan = 1279  # keys and states of one tile of 128 by 9, and of 32 before it
    expected = [16 * 4, 2 * 16 * 4, 2 * 16 * 4, blocks * 256 * 2, 16 * 256 * 4, blocks * 4]
    found = taken(lambda x: x.topk(3), lambda: randn(16, 25_000), gpu=gpu, compute=False)
    assert found[:6] == expected
    assert found[6:11] == [blocks * 4, scan, -scan, scan, -scan]
    assert sum(found) == 0


def test_before_torch_2_10_topk_has_a_semaphore_for_each_slice(monkeypatch):
    monkeypatch.setattr(sorting, "RELEASE", (2, 9))
    blocks = 16 * -(-25_000 // (4 * 256))
    found = taken(lambda x: x.topk(3), lambda: randn(16, 25_000), gpu="a100", compute=False)
    assert found[:5] == [16 * 4, 16 * 4, 2 * 16 * 4, 2 * 16 * 4, blocks * 256 * 2]
    assert found[5:7] == [blocks * 4, blocks * 4]
    assert sum(found) == 0


def test_topk_of_a_few_very_long_slices_sorts_them():
    storage = sort_of_floats(100_000, 384 * 8)
    found = taken(lambda x: x.topk(3), lambda: randn(100_000), compute=False)
    assert found == temporaries(400_000, 800_000, 800_000, storage)


def test_many_largest_are_sorted_afterwards():
    found = taken(lambda x: x.topk(5000), lambda: randn(60, 7000), compute=False)
    count = 60 * 5000
    assert found[:2] == [count * 8, count * 4]
    assert taken(lambda x: x.topk(5000, sorted=False), lambda: randn(60, 7000)) == []


def test_medians_copy_or_sort():
    assert events(lambda x: x.kthvalue(2), lambda: randn(8, 8).t()) == [256, 32, 64, -256]
    assert events(lambda x: x.median(1), lambda: randn(8, 8).t()) == [256, 32, 64, -256]
    assert events(lambda x: x.median(1), lambda: randn(8, 8)) == [32, 64]
    assert events(torch.median, lambda: randn(8, 8)) == [256, 512, 512, -512, -512, 4, -256]
    assert events(lambda x: x.mode(0), lambda: randn(8, 8)) == [32, 64, 256, -256]
