"""Temporaries of `scatter_reduce`."""

from __future__ import annotations

import pytest
from support.computed_or_dry import computed_or_dry
from support.op_memory import events, indices, randn, temporaries

pytestmark = pytest.mark.usefixtures("no_values_in_dry_runs")


@computed_or_dry
@pytest.mark.parametrize(("reduction", "counts"), [("sum", []), ("mean", [40, 16, 4])])
def test_a_mean_counts_what_was_added(reduction, counts, compute):
    def reduce(x, i, y):
        return x.scatter_reduce(0, i, y, reduction)

    make = [lambda: randn(4), lambda: indices(10, below=4), lambda: randn(10)]
    assert events(reduce, *make, compute=compute) == [16, *temporaries(*counts)]

    def write(x, i, y):
        return x.scatter_reduce_(0, i, y, reduction, include_self=False)

    assert events(write, *make, compute=compute) == temporaries(*counts)
