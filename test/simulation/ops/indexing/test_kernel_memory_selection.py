"""What indexing, embeddings' gradients, masks, unique elements and samples take."""

from __future__ import annotations

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from support.op_memory import aten, events, indices, randn, storage_of, temporaries

from pytorch_memlab.simulation.hardware.presets import PRESETS
from pytorch_memlab.simulation.ops import cub

A100 = PRESETS["a100"]


def tiles_of(count, tile, state=8):
    """Storage of a scan or a selection: a state of each tile, and of 32 that stand before them."""
    return storage_of((-(-count // tile) + 32) * state)


def nonzero_of_a_thousand(found):
    """What counting, then finding takes: a count, one block of threads, states of tiles."""
    return [4, *temporaries(1)], [found, *temporaries(tiles_of(1000, 128 * 5))]


@pytest.mark.parametrize(("gpu", "blocks"), [("a100", 108 * 8 * 5), ("t4", 40 * 4 * 5)])
def test_nonzero_counts_before_it_finds(gpu, blocks):
    sums = -(-blocks * 4 // 256) * 256 + 255
    states = (-(-100_000 // (128 * 5)) + 32) * 8
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


def test_indices_are_converted_and_laid_out_alike():
    plain = events(lambda x, i: x[i], lambda: randn(50, 50), lambda: indices(9))
    assert plain == [9 * 50 * 4]
    narrow = events(lambda x, i: x[i], lambda: randn(50, 50), lambda: indices(9).int())
    assert narrow == [72, 9 * 50 * 4, -72]
    grid = events(
        lambda x, i, j: x[i, j], lambda: randn(50, 50), lambda: indices(4, 1), lambda: indices(5)
    )
    assert grid == [160, 160, 80, -160, -160]


@pytest.mark.parametrize(("rows", "passes"), [(256, 1), (257, 2)])
def test_an_accumulating_index_put_sorts_as_many_bits_as_it_must(rows, passes):
    count = 10_000
    tiles = -(-count // (384 * 10)) * 256 * 4
    buffers = 2 * (-(-count * 8 // 256) * 256) if passes > 1 else 0
    storage = passes * 256 * 8 + tiles + buffers + 256 + 255
    found = events(
        lambda x, i, v: x.index_put_((i,), v, accumulate=True),
        lambda: randn(rows, 4),
        lambda: indices(count),
        lambda: randn(count, 4),
    )
    linear = [count * 8, count * 8, -count * 8]
    assert found == [*linear, *temporaries(count * 8, count * 8, count * 8, storage), -count * 8]


def test_a_mask_is_filled_without_indices():
    mask = lambda: indices(50, 20, below=2) > 0  # noqa: E731
    assert events(lambda x, m: x.__setitem__(m, 1.0), lambda: randn(50, 20), mask) == []


def test_values_under_a_mask_need_indices():
    before, after = nonzero_of_a_thousand(500 * 2 * 8)
    mask = lambda: indices(50, 20, below=2) > 0  # noqa: E731
    put = lambda x, m, v: x.__setitem__(m, v)  # noqa: E731
    found = events(put, lambda: randn(50, 20), mask, lambda: randn(500))
    assert found == [*before, -4, *after, -500 * 2 * 8]


def embedding(rows, columns, count, dtype=torch.float32, **options):
    found = events(
        lambda g, i: aten.embedding_dense_backward(g, i, rows, -1, False),
        lambda: randn(count, columns, dtype=dtype),
        lambda: indices(count),
        **options,
    )
    at = found.index(rows * columns * dtype.itemsize)
    return found[:at], found[at + 1 :]


def test_the_gradient_of_few_embedded_indices_takes_nothing():
    assert embedding(7, 64, 3072) == ([], [])
    before, _ = embedding(7, 64, 3073)
    assert before[:3] == [3073 * 8] * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("gpu", ["a100", "t4"])
def test_the_gradient_of_many_embedded_indices_is_summed_in_parts(gpu, dtype):
    count, rows, columns = 5000, 2000, 999
    assert -(-count // (384 * 10)) == -(-count // (256 * 11)) == 2  # tiles, on either GPU
    sort = storage_of(8 * 256 * 8, 2 * 256 * 4, count * 8, count * 8, 8 * 4)
    before, after = embedding(rows, columns, count, dtype, gpu=gpu)
    assert before == [count * 8, count * 8, *temporaries(count * 8, sort)]
    parts = count // 10 + rows
    unique, sums = tiles_of(count, 128 * 5), tiles_of(rows, 128 * 7, 16)
    assert after == [
        *(count * 8, 8, *temporaries(count * 8, unique)),
        *(rows * 8, rows * 8, sums, -sums, 8, parts * 8),
        *temporaries(parts * columns * 4),
        *(-parts * 8, -8, -rows * 8, -rows * 8, -8, -count * 8, -count * 8, -count * 8),
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_of_few_rows_is_added_up_at_once(dtype):
    _, after = embedding(5, 64, 9000, dtype)
    parts = 900 + 5
    weight = temporaries(5 * 64 * 4) if dtype == torch.bfloat16 else []
    at = after.index(parts * 8)
    assert after[at : at + 3 + len(weight)] == [parts * 8, parts * 8, *weight, -parts * 8]
    torch.use_deterministic_algorithms(True)
    try:
        assert parts * 64 * 4 in embedding(5, 64, 9000, dtype)[1]
    finally:
        torch.use_deterministic_algorithms(False)


def test_bags_sort_their_indices_however_few():
    module = torch.nn.EmbeddingBag(100, 32, mode="mean")

    def gradient(bag, i):
        bag(i).sum().backward()
        return bag

    found = events(gradient, lambda: module.cuda(), lambda: indices(10, 3))
    parts = 30 // 10 + 30
    assert parts * 32 * 4 in found
    assert found.count(30 * 8) >= 4


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


def test_unique_elements_side_by_side_need_no_sort():
    states = tiles_of(1000, 128 * 5)
    found = events(torch.unique_consecutive, lambda: indices(1000))
    assert found == [8000, 8, states, -states, -8]


def test_a_sample_is_the_largest_of_random_quotients():
    found = events(lambda x: x.multinomial(1), lambda: randn(4, 1000).abs())
    checks = [4, 4, 1, 1, 1, -1, -1, 16, 4, 1, -4, -16, 1, -1]
    assert found == [32, *checks, 16000, -16000, -1, -1, -4, -4]
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


def test_repetitions_are_added_up_and_checked():
    storage = tiles_of(100, 128 * 7, 16)
    call = torch.repeat_interleave
    found = events(lambda r: aten.repeat_interleave.Tensor(r), lambda: indices(100))
    assert found == [800, *temporaries(storage), -800, 800, 100, 1, -1, -100, 450 * 8, -800]
    known = events(lambda r: call(r, output_size=450), lambda: indices(100))
    assert known == [800, *temporaries(storage), -800, 800, 450 * 8, -800]


def test_a_masked_scatter_numbers_every_element():
    storage = tiles_of(81, 128 * 7, 16)
    found = events(
        lambda x, m, s: x.masked_scatter_(m, s),
        lambda: randn(9, 9),
        lambda: indices(9) > 4,
        lambda: randn(81),
    )
    assert found == [648, 81, storage, -storage, -81, -648]


def test_buckets_are_searched_in_one_type():
    found = events(torch.bucketize, lambda: randn(9).double(), lambda: randn(5))
    assert found == [72, 40, -40]


def test_pairs_of_points_are_measured_by_a_product():
    found = events(torch.cdist, lambda: randn(100, 3), lambda: randn(50, 3))
    squares = [1200, 400, -1200, 400, 600, 200, -600, 200]
    joined = [1200, 100 * 5 * 4, -1200, -400, -400, 50 * 5 * 4, -200, -200]
    assert found == [*squares, *joined, 100 * 50 * 4, 8519680, -1000, -2000]
    assert events(torch.cdist, lambda: randn(25, 3), lambda: randn(25, 3)) == [2500]


@computed_or_dry
def test_copies_to_other_layouts_are_staged_on_the_gpu(compute):
    def to(target, source):
        return target.copy_(source)

    matrix = lambda: randn(30, 20)  # noqa: E731
    transposed = lambda: randn(20, 30).t()  # noqa: E731
    host = lambda: torch.randn(30, 20)  # noqa: E731
    assert events(to, matrix, host, compute=compute) == []
    assert events(to, transposed, host, compute=compute) == [2400, -2400]
    assert events(to, matrix, lambda: host().double(), compute=compute) == []
    later = lambda target, source: target.copy_(source, non_blocking=True)  # noqa: E731
    assert events(later, matrix, lambda: host().double(), compute=compute) == [4800, -4800]
    assert events(to, transposed, matrix, compute=compute) == []
    assert events(lambda x: x.cuda(), lambda: host().t(), compute=compute) == [2400]


def test_pooling_copies_what_lies_in_no_format():
    pool = lambda x: torch.nn.functional.max_pool2d(x, 2, return_indices=True)  # noqa: E731
    results = [2 * 4 * 4 * 4 * 4, 2 * 4 * 4 * 4 * 8]
    assert events(pool, lambda: randn(2, 4, 8, 8)) == results
    sliced = events(pool, lambda: randn(2, 4, 8, 16)[..., ::2])
    assert sliced == [*results, 2048, -2048]
    last = lambda: randn(2, 4, 8, 8).to(memory_format=torch.channels_last)  # noqa: E731
    assert events(pool, last) == results
