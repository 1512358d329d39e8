"""Distributions in a dry run check what they cannot know; what is known is checked as ever."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.distributions import Categorical, Distribution, Geometric, Independent, Normal

from pytorch_memlab import simulate

LARGE = (128, 64)
"""More elements than a dry run computes with."""


@pytest.fixture(autouse=True)
def distributions_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """``torch.compile`` turns the checks off for the rest of a process."""
    monkeypatch.setattr(Distribution, "_validate_args", True)


def normal() -> Distribution:
    mean, scale = (torch.randn(LARGE, device="cuda") for _ in range(2))
    return Independent(Normal(mean, scale.exp()), 1)


def categorical() -> Distribution:
    return Categorical(logits=torch.randn(LARGE, device="cuda"))


@pytest.mark.parametrize("make", [normal, categorical])
def test_unknown_parameters_and_values_are_valid(make: Callable[[], Distribution]) -> None:
    peaks = []
    for compute in (True, False):
        with simulate("24GiB", compute=compute, strict=not compute):
            distribution = make()
            distribution.log_prob(distribution.sample())
            peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[0] == peaks[1] > 0


def test_a_class_that_looks_at_its_parameters_itself_finds_them_valid() -> None:
    with simulate("24GiB", compute=False, strict=True):
        probabilities = torch.rand(LARGE, device="cuda").clamp(0.1, 0.9)
        assert Geometric(probabilities).probs is probabilities


def test_a_parameter_of_zeros_in_place_of_values_is_valid_too() -> None:
    with simulate("24GiB", compute=False, strict=True):
        scale = torch.randn(LARGE, device="cuda").exp().sum(0)
        assert Normal(0.0, scale).scale is scale


@pytest.mark.parametrize("compute", [True, False])
def test_known_values_are_checked(compute: bool) -> None:
    with simulate("24GiB", compute=compute):
        with pytest.raises(ValueError, match="Expected parameter scale"):
            Normal(0.0, torch.zeros(3, device="cuda"))
        die = Categorical(probs=torch.ones(6, device="cuda"))
        with pytest.raises(ValueError, match="to be within the support"):
            die.log_prob(torch.tensor(6, device="cuda"))


def test_what_is_read_after_a_distribution_is_made_is_false_again() -> None:
    with simulate("24GiB", compute=False) as machine:
        logits = torch.randn(LARGE, device="cuda")
        Categorical(logits=logits)
        assert not bool((logits == logits).all())
        assert [read.name for read in machine.data_dependent_reads] == ["Tensor.item"]
