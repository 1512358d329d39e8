"""``nn.init.trunc_normal_`` has one peak, with values and without."""

from __future__ import annotations

import pytest
import torch

from pytorch_memlab import simulate


def peak(compute: bool, shape: tuple[int, ...], bounds: dict[str, float]) -> int:
    with simulate("24GiB", compute=compute):
        tensor = torch.empty(shape, device="cuda")
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        torch.nn.init.trunc_normal_(tensor, **bounds)
        return torch.cuda.max_memory_allocated() - before


@pytest.mark.parametrize(
    ("shape", "bounds"),
    [
        ((500, 500), {}),
        ((500, 500), {"std": 0.02}),
        ((500, 500), {"mean": 0.5, "std": 2.0, "a": -1.0, "b": 1.5}),
        ((500, 500), {"a": 1.0, "b": 1.2}),
        ((500, 500), {"a": 2.0, "b": 5.0}),
        ((8, 8), {"std": 0.02}),
    ],
    ids=["default", "narrow", "wide", "even", "tail", "small"],
)
def test_a_dry_run_draws_as_many_rounds_as_are_expected(shape, bounds):
    assert peak(False, shape, bounds) == peak(True, shape, bounds)


def test_truth_values_are_false_again_afterwards():
    with simulate("24GiB", compute=False):
        weight = torch.empty(500, 500, device="cuda")
        torch.nn.init.trunc_normal_(weight)
        assert not (weight > 1).any()
