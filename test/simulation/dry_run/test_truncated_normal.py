"""``nn.init.trunc_normal_`` has one peak, with values and without."""

from __future__ import annotations

import math

import pytest
import torch

from pytorch_memlab import simulate
from pytorch_memlab.simulation.torch_api.nn import rounds


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


def test_bounds_that_no_draw_reaches_end_as_with_values_after_100_rounds():
    assert rounds(1000, 0.0, 1.0, 50.0, 60.0) == rounds(1000, 0.0, 1.0, 50.0, 1e18) == 100
    with simulate("24GiB", compute=False):
        tensor = torch.empty(1000, device="cuda")
        with pytest.warns(UserWarning, match="more than 2 std"):
            torch.nn.init.trunc_normal_(tensor, a=50.0, b=60.0)


@pytest.mark.parametrize("a", [-0.05, 0.5, 7.0, 36.9, 36.95, 37.0, 60.0])
def test_what_evenly_drawn_numbers_keep_is_the_mean_height_of_the_curve(a):
    # Of each candidate x between a and b, exp((mode^2 - x^2) / 2) is the chance to stay.
    b, mode = a + 0.1, max(a, 0.0)
    places = [a + 0.1 * (number + 0.5) / 1000 for number in range(1000)]
    kept = sum(math.exp((mode**2 - x**2) / 2) for x in places) / 1000
    expected = int(math.log(10**6) / -math.log(1 - kept))

    assert rounds(10**6, 0.0, 1.0, a, b) == rounds(10**6, 0.0, 1.0, -b, -a) == expected
    assert rounds(10**6, 3.0, 2.0, 3.0 + 2 * a, 3.0 + 2 * b) == expected


def test_truth_values_are_false_again_afterwards():
    with simulate("24GiB", compute=False):
        weight = torch.empty(500, 500, device="cuda")
        torch.nn.init.trunc_normal_(weight)
        assert not (weight > 1).any()
