"""Entries of the kernels' table know what they take from shapes alone."""

from __future__ import annotations

import pytest
import torch
from support.op_memory import CALLS, events

from pytorch_memlab.simulation.ops import registry as table
from pytorch_memlab.simulation.ops.no_workspace import _TAKE_NOTHING


@pytest.mark.parametrize("name", sorted(CALLS))
def test_the_same_is_taken_without_values(name):
    computed = events(CALLS[name])
    assert computed
    assert events(CALLS[name], compute=False) == computed


def test_an_op_is_listed_once():
    families = [one.ENTRIES for one in vars(table).values() if hasattr(one, "ENTRIES")]
    assert len(families) == 40
    assert sum(len(entries) for entries in families) == len(
        {name for entries in families for name in entries}
    )
    listed = {name.split("::")[1].split(".")[0] for name in table.ENTRIES}
    assert not listed & _TAKE_NOTHING


def test_every_op_that_takes_nothing_exists():
    for name in _TAKE_NOTHING:
        assert hasattr(torch.ops.aten, name), name


@pytest.mark.parametrize(
    ("out", "plain"),
    [
        ("mm.out", "mm.default"),
        ("sum.IntList_out", "sum.dim_IntList"),
        ("mean.out", "mean.dim"),
        ("max.dim_max", "max.dim"),
        ("topk.values", "topk.default"),
        ("std.correction_out", "std.correction"),
    ],
)
def test_ops_that_write_to_a_given_result_take_as_much(out, plain):
    def op(name):
        packet, overload = name.split(".")
        return getattr(getattr(torch.ops.aten, packet), overload)

    assert table.entry_of(op(plain)) is not None
    assert table.entry_of(op(out)) is table.entry_of(op(plain))
    assert table.entry_of(torch.ops.aten.add.out) is None


def test_a_sum_that_is_written_stages_as_much():
    def summed(source, result):
        return torch.sum(source, 0, out=result)

    made = events(lambda x: x.sum(0), lambda: torch.randn(10**6, 1, device="cuda"))
    make = [lambda: torch.randn(10**6, 1, device="cuda"), lambda: torch.zeros(1, device="cuda")]
    assert events(summed, *make) == made[1:] != []
