"""Temporaries of the gradients of embeddings and of bags of them."""

from __future__ import annotations

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from support.op_memory import aten, events, indices, randn, storage_of, temporaries, tiles_of
from torch.nn import functional

from pytorch_memlab.simulation import simulate


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


@computed_or_dry
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.usefixtures("no_values_in_dry_runs")
def test_bags_keep_the_bag_of_each_index(mode, compute):
    def bags(dtype=torch.int64, *, last=False, **options):
        return events(
            lambda w, i, o: functional.embedding_bag(
                i, w, o, mode=mode, include_last_offset=last, **options
            ),
            lambda: randn(10, 16).requires_grad_(),
            lambda: indices(100).to(dtype),
            lambda: torch.arange(0, 100 + last, 25, device="cuda"),
            compute=compute,
        )

    largest = [4 * 16 * 8] if mode == "max" else []
    kept = [4 * 8, 100 * 8, 4 * 16 * 4, *largest]
    assert bags() == kept
    assert bags(padding_idx=3) == kept
    assert bags(last=True) == [5 * 8, *kept[1:]]
    # Indices of 32 bits become as wide as the offsets, while the bags are made.
    assert bags(torch.int32) == [800, *kept, -800]
    with torch.no_grad():
        assert sorted(bags()[len(kept) :]) == sorted(-nbytes for nbytes in [32, 800, *largest])


@computed_or_dry
@pytest.mark.usefixtures("no_values_in_dry_runs")
def test_bags_of_narrow_indices_keep_narrow_indices(compute):
    found = events(
        lambda w, i, o: functional.embedding_bag(i, w, o, mode="max"),
        lambda: randn(10, 16).requires_grad_(),
        lambda: indices(100).int(),
        lambda: torch.arange(0, 100, 25, device="cuda", dtype=torch.int32),
        compute=compute,
    )
    assert found == [4 * 4, 100 * 4, 4 * 16 * 4, 4 * 16 * 4]


@computed_or_dry
@pytest.mark.parametrize(("mode", "largest"), [("sum", 0), ("mean", 0), ("max", 128_000)])
def test_many_bags_keep_what_cuda_makes(mode, largest, compute):
    with simulate("a100", compute=compute):
        places = torch.randint(0, 1000, (100_000,), device="cuda")
        offsets = torch.arange(0, 100_000, 100, device="cuda")
        module = torch.nn.EmbeddingBag(1000, 16, mode=mode).cuda()
        before = torch.cuda.memory_allocated()
        result = module(places, offsets)
        rounded_sizes = 8_192 + 800_256 + 64_000  # sizes of bags, bag of each index, bags
        assert torch.cuda.memory_allocated() - before == rounded_sizes + largest
        del result


@computed_or_dry
@pytest.mark.usefixtures("no_values_in_dry_runs")
def test_gradients_of_weighted_bags(compute):
    def gradients(weight, scales, places):
        functional.embedding_bag(
            places, weight, mode="sum", per_sample_weights=scales
        ).sum().backward()

    found = events(
        gradients,
        lambda: randn(10, 16).requires_grad_(),
        lambda: randn(4, 25).requires_grad_(),
        lambda: indices(4, 25),
        compute=compute,
    )
    assert 100 * 8 in found  # the bag of each index
    assert sum(found) == 10 * 16 * 4 + 100 * 4
    assert found[:4] == [32, 32, 800, 256]


def test_bags_compute_what_a_cpu_computes():
    torch.manual_seed(0)
    weight = torch.randn(10, 16)
    places, offsets = torch.randint(0, 10, (40,)), torch.tensor([0, 3, 3, 20, 40])
    scales = torch.rand(40)
    for mode in ("sum", "mean", "max"):
        for last in (False, True):
            for options in ({}, {"padding_idx": 3}, {"per_sample_weights": scales}):
                if options.get("per_sample_weights") is not None and mode != "sum":
                    continue
                check_bags(weight, places, offsets, mode, last, options)


def check_bags(weight, places, offsets, mode, last, options):
    def run(device):
        leaf = weight.to(device, copy=True).requires_grad_()
        moved = {
            name: value.to(device, copy=True).requires_grad_()
            if isinstance(value, torch.Tensor)
            else value
            for name, value in options.items()
        }
        found = functional.embedding_bag(
            places.to(device),
            leaf,
            offsets.to(device),
            mode=mode,
            include_last_offset=last,
            **moved,
        )
        (found * torch.arange(16, device=device)).sum().backward()
        scales = moved.get("per_sample_weights")
        return [found, leaf.grad, *([] if scales is None else [scales.grad])]

    expected = run("cpu")
    with simulate("a100"):
        found = [tensor.cpu() for tensor in run("cuda")]
    torch.testing.assert_close(found, expected)
