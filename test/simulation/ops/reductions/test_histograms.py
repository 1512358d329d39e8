"""Histograms of values that have no finite range."""

from __future__ import annotations

import pytest
import torch

from pytorch_memlab import simulate


@pytest.mark.parametrize(
    ("values", "bounds", "words"),
    [
        ([float("inf")], (), "[inf, inf]"),
        ([1.0, 2.0, float("inf")], (), "[1, inf]"),
        ([1.5, float("nan")], (), "[nan, nan]"),
        ([1.0], (0, float("inf")), "[0, inf]"),
    ],
)
def test_a_range_that_is_not_finite_is_refused_in_cudas_words(values, bounds, words):
    with simulate("1GiB"):
        tensor = torch.tensor(values, device="cuda")
        with pytest.raises(RuntimeError) as caught:
            torch.histc(tensor, 4, *bounds)
    assert str(caught.value) == f"range of {words} is not finite"


def test_values_outside_of_a_finite_range_are_left_out():
    with simulate("1GiB"):
        tensor = torch.tensor([0.0, 1.0, 3.0, float("inf")], device="cuda")
        assert torch.histc(tensor, 2, 0, 2).tolist() == [1.0, 1.0]
        assert torch.histc(torch.tensor([2.0], device="cuda"), 2).tolist() == [0.0, 1.0]
