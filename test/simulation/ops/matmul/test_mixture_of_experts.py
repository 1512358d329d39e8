"""Ops of a layer of experts that the host has no kernel or no shapes of."""

from __future__ import annotations

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from support.dry_run_comparison import events_of, lines_of_both_runs
from torch.nn import functional

from pytorch_memlab import simulate


def tokens_per_expert():
    experts = torch.tensor([0, 1, 1, 3, 3, 3, 9], device="cuda", dtype=torch.int32)
    return torch.histc(experts, bins=4, min=0, max=3)


def test_a_histogram_of_integers():
    with simulate("h100"):
        counts = tokens_per_expert()
        assert counts.tolist() == [1, 2, 0, 3]
        assert (counts.dtype, counts.device.type) == (torch.int32, "cuda")
        everything = torch.histc(torch.tensor([2, 2, 4, 6], device="cuda"), bins=2)
        assert everything.tolist() == [2, 2]
        same = torch.histc(torch.tensor([5, 5], device="cuda"), bins=2)
        assert same.tolist() == [0, 2]
        with pytest.raises(RuntimeError, match="not implemented for 'Int'"):
            torch.histc(torch.ones(3, dtype=torch.int32), bins=2)


def test_bounds_that_are_given_cost_no_reductions():
    sizes = [event[1] for event in events_of(tokens_per_expert, compute=False) if len(event) == 3]
    assert sizes == [7 * 4, 4 * 4]


def test_bounds_that_are_not_given_cost_two_reductions():
    def histogram():
        torch.histc(torch.zeros(1000, device="cuda"), bins=10)

    sizes = [event[1] for event in events_of(histogram, compute=False) if len(event) == 3]
    assert sizes[:3] == [4000, 40, 4]
    assert sizes.count(4) == 2


def experts(dtype):
    weights = torch.randn(4, 64, 24, device="cuda", dtype=dtype, requires_grad=True)
    tokens = torch.randn(1000, 64, device="cuda", dtype=dtype, requires_grad=True)
    ends = torch.tensor([100, 500, 900, 1000], device="cuda", dtype=torch.int32)
    functional.grouped_mm(tokens, weights, offs=ends).pow(2).sum().backward()


grouped = pytest.mark.skipif(
    not hasattr(functional, "grouped_mm"), reason="this torch has no grouped_mm"
)


@grouped
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_products_of_groups_have_shapes_in_every_dtype(dtype):
    lines_of_both_runs(lambda: experts(dtype), [experts])


@grouped
def test_rows_of_a_product_are_aligned_to_16_bytes():
    def product():
        ends = torch.tensor([3, 5], device="cuda", dtype=torch.int32)
        made = functional.grouped_mm(
            torch.randn(5, 8, device="cuda"), torch.randn(2, 6, 8, device="cuda").mT, offs=ends
        )
        assert (made.shape, made.stride()) == ((5, 6), (8, 1))

    assert events_of(product, compute=False) == events_of(product, compute=True)


@grouped
@computed_or_dry
@pytest.mark.parametrize(
    ("right", "message"),
    [
        (lambda: torch.randn(2, 16, 8), "contraction dimension of mat_a and mat_b must match"),
        (lambda: torch.randn(2, 8, 1).expand(2, 8, 8), r"Invalid strides/sizes, got \[8, 1, 0\]"),
        (lambda: torch.randn(2, 8, 7), "strides should be multiple of 16 bytes"),
    ],
    ids=["inner dimension", "expanded", "unaligned"],
)
def test_matrices_that_do_not_fit_are_refused(right, message, compute):
    with simulate("h100", compute=compute):
        ends = torch.tensor([3, 5], dtype=torch.int32, device="cuda")
        left, matrices = torch.randn(5, 8, device="cuda"), right()
        place = torch.empty_strided(matrices.shape, matrices.stride(), device="cuda")
        with pytest.raises(RuntimeError, match=message):
            functional.grouped_mm(left, place, offs=ends)


@grouped
@computed_or_dry
def test_inner_dimensions_match_but_for_groups_of_them(compute):
    with simulate("h100", compute=compute):
        ends = torch.tensor([200, 800], dtype=torch.int32, device="cuda")
        left = torch.empty(2, 500, 400, device="cuda")
        with pytest.raises(RuntimeError, match="contraction dimension of mat_a and mat_b must"):
            functional.grouped_mm(left, torch.empty(640, 800, device="cuda"), offs=ends)
        made = functional.grouped_mm(left, torch.empty(400, 800, device="cuda"), offs=ends)
        assert made.shape == (500, 800)

        left, right = torch.empty(500, 960, device="cuda"), torch.empty(800, 40, device="cuda")
        assert functional.grouped_mm(left, right, offs=ends).shape == (2, 500, 40)


@grouped
@pytest.mark.parametrize(
    ("gpu", "taken"),
    [("h100", [3 * 4 * 8 + 4 * 12 + 3 * 4 * 8, 5 * 128 * 132]), ("a100", [])],
)
def test_bfloat16_has_a_kernel_of_its_own_from_hopper_on(gpu, taken):
    with simulate(gpu, compute=False) as machine:
        asked = []
        allocate = machine.gpus[0].allocate

        def spied(nbytes, *rest, **known):
            asked.append(nbytes)
            return allocate(nbytes, *rest, **known)

        torch.ones(2, 2, device="cuda") @ torch.ones(2, 2, device="cuda")
        tokens = torch.randn(1000, 64, device="cuda", dtype=torch.bfloat16)
        weights = torch.randn(4, 64, 24, device="cuda", dtype=torch.bfloat16)
        ends = torch.tensor([100, 500, 900, 1000], device="cuda", dtype=torch.int32)
        machine.gpus[0].allocate = spied
        functional.grouped_mm(tokens, weights, offs=ends)
        del machine.gpus[0].allocate
    assert asked == [1000 * 24 * 2, *taken]
