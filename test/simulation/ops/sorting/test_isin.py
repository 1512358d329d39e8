"""Temporaries of `isin`."""

from __future__ import annotations

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from support.op_memory import events, indices, temporaries

from pytorch_memlab.simulation import simulate

pytestmark = pytest.mark.usefixtures("no_values_in_dry_runs")


@computed_or_dry
@pytest.mark.parametrize("invert", [False, True])
def test_each_element_is_compared_with_each_of_a_few(invert, compute):
    def find(x, among):
        return torch.isin(x, among, invert=invert)

    make = [lambda: indices(4, 25), lambda: indices(18)]
    found = events(find, *make, compute=compute)
    assert found == [100, *temporaries(100 * 18, 100)]
    empty = [lambda: indices(0), lambda: indices(3)]
    assert events(find, *empty, compute=compute) == []


@pytest.mark.parametrize(("among", "is_known"), [(18, True), (19, False)])
def test_a_sort_of_many_is_named(among, is_known):
    with simulate("a100") as machine:
        torch.isin(indices(100), indices(among))
        assert machine.unmodelled == {}
        approximations = machine.approximations[0]
    op = "aten.isin.Tensor_Tensor"
    assert (op in approximations.estimated) == is_known
    assert ((op, "memory of sorts of distinct elements") in approximations.uncounted) != is_known
