"""Unique elements: their temporaries, the memory that they lie in, and their values."""

from __future__ import annotations

import torch
from support.computed_or_dry import computed_or_dry
from support.op_memory import events, indices, randn, storage_of, tiles_of

from pytorch_memlab import simulate


def test_unique_sorts_a_copy_and_keeps_room_for_all():
    count = 100_000
    make = lambda: indices(count)  # noqa: E731
    copy = count * 8
    passes = [8 * 256 * 8, -(-count // (384 * 10)) * 256 * 4]
    sort, states = storage_of(*passes, copy, 8 * 4), tiles_of(count, 128 * 5)
    assert events(torch.unique, make) == [
        *(copy, sort, -sort),
        *(copy, 8, states, -states, -8, -copy),
    ]
    pairs, scan = storage_of(*passes, copy, copy, 8 * 4), tiles_of(count, 128 * 15)
    runs = tiles_of(count, 128 * 6, 16)
    both = lambda x: torch.unique(x, return_inverse=True, return_counts=True)  # noqa: E731
    assert events(both, make) == [
        *(copy, copy, copy, pairs, -pairs, -copy),
        *(copy, copy, scan, -scan, -copy, copy, 8, copy, runs),
        *(-runs, -8, -copy, -copy),
    ]


def test_the_op_that_has_no_counts_takes_what_unique_takes_without_them():
    make = lambda: indices(100_000)  # noqa: E731
    assert events(lambda x: torch._unique(x), make) == events(torch.unique, make)


def test_unique_elements_side_by_side_need_no_sort():
    states = tiles_of(1000, 128 * 5)
    found = events(torch.unique_consecutive, lambda: indices(1000))
    assert found == [8000, 8, states, -states, -8]


def sizes_of(tensors):
    return [tensor.untyped_storage().nbytes() for tensor in tensors]


@computed_or_dry
def test_unique_elements_lie_in_memory_for_all(compute):
    with simulate("1GiB", compute=compute):
        tensor = torch.tensor([3, 1, 3, 3, 2, 1] * 1000, device="cuda")
        before = torch.cuda.memory_allocated()
        found, inverse, counts = tensor.unique(return_inverse=True, return_counts=True)
        assert (found.tolist(), counts.tolist()) == ([1, 2, 3], [2000, 1000, 3000])
        assert torch.equal(found[inverse], tensor)
        assert sizes_of((found, inverse, counts)) == [6000 * 8] * 3
        assert torch.cuda.memory_allocated() - before == 3 * 48128
        del inverse, counts
        assert torch.cuda.memory_allocated() - before == 48128
        runs, lengths = tensor.unique_consecutive(return_counts=True)
        assert (runs[:4].tolist(), lengths[:4].tolist()) == ([3, 1, 3, 2], [1, 1, 2, 1])
        assert (runs.numel(), sizes_of((runs, lengths))) == (5000, [48000, 48000])
        rows, lengths = tensor.view(-1, 6).unique(dim=0, return_counts=True)
        assert (rows.tolist(), lengths.tolist()) == ([[3, 1, 3, 3, 2, 1]], [1000])
        assert sizes_of((rows, lengths)) == [48, 8]


@computed_or_dry
def test_a_mask_has_two_at_most(compute):
    mask = lambda: randn(70_000) > 0  # noqa: E731
    reduced = storage_of(108 * 8 * 5 * 4)  # a number of each block: 8 of 256 threads, 5 times
    take = [4, reduced, -reduced]
    found = events(torch.unique, mask, compute=compute)
    assert found == [*take, 2, 16, -4, -16]
    both = events(lambda x: x.unique(return_inverse=True), mask, compute=compute)
    assert both == [*take, 2, 16, 70_000 * 8, -4, -16]
    with simulate("1GiB", compute=compute):
        same = torch.ones(5, device="cuda", dtype=torch.bool)
        found, counts = same.unique(return_counts=True)
        assert (found.tolist(), counts.tolist()) == ([True], [5])
        assert sizes_of((found, counts)) == [2, 16]


@computed_or_dry
def test_unique_rows_number_them(compute):
    def rows(x):
        return torch.unique(x, dim=0, return_inverse=True, return_counts=True)

    make = lambda: torch.arange(600, device="cuda").view(100, 6)  # noqa: E731
    result = [800, 800, 800, -800, 808, 800, -808, 4800, -800]
    assert events(rows, make, compute=compute) == result
    columns = lambda x: torch.unique(x, dim=1)  # noqa: E731
    assert events(columns, make, compute=compute) == [4800, 48, 4800, -48, -4800]


@computed_or_dry
def test_rows_side_by_side_take_their_options_by_position(compute):
    distinct = torch.ops.aten.unique_dim_consecutive.default
    with simulate("1GiB", compute=compute):
        rows = torch.arange(12, device="cuda").view(4, 3)
        assert [tuple(one.shape) for one in distinct(rows, 0, True)] == [(4, 3), (4,), (0,)]
        assert [tuple(one.shape) for one in distinct(rows, 0, False, True)] == [(4, 3), (0,), (4,)]


def test_nothing_is_unique_in_nothing():
    assert events(torch.unique, lambda: randn(0)) == []
    assert events(torch.unique_consecutive, lambda: randn(0)) == []
    assert events(lambda x: x.unique(dim=0), lambda: randn(0, 3)) == []
