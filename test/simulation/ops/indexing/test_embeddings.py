"""Temporaries of the gradients of embeddings and of bags of them."""

from __future__ import annotations

import pytest
import torch
from support.op_memory import aten, events, indices, randn, storage_of, temporaries, tiles_of


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
