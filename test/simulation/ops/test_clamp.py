"""Temporaries of clamping to numbers."""

from __future__ import annotations

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from support.op_memory import events, indices, randn

pytestmark = pytest.mark.usefixtures("no_values_in_dry_runs")


@computed_or_dry
@pytest.mark.parametrize(
    "clamp",
    [
        lambda x, bound: torch.clamp(x, min=bound),
        lambda x, bound: torch.clamp(x, bound, 2 * bound),
        torch.clamp_min,
        torch.clamp_max,
    ],
)
def test_integers_are_converted_where_a_bound_is_none(clamp, compute):
    def converted(x):
        return clamp(x, 1.0)

    def kept(x):
        return clamp(x, 1)

    assert events(converted, lambda: indices(9), compute=compute) == [36, 36, -36]
    assert events(kept, lambda: indices(9), compute=compute) == [72]
    assert events(converted, lambda: randn(9), compute=compute) == [36]
