"""The registry of ops: each op once, ops that exist, and ops that write to a given tensor."""

from __future__ import annotations

import pytest
import torch
import torch.distributed.fsdp

from pytorch_memlab.simulation.ops.no_workspace import ops_without_workspace
from pytorch_memlab.simulation.ops.registry import define, definition_of, definitions, provenances


def test_a_second_registration_of_an_op_is_an_error():
    with pytest.raises(ValueError, match="aten::topk is registered twice"):
        define("aten::topk")


def test_an_op_with_a_memory_model_is_not_listed_as_without_workspace():
    modelled = {name for name, known in definitions().items() if known.provenance is not None}
    packets = {name.split("::")[1].split(".")[0] for name in modelled}
    assert not packets & ops_without_workspace()


def test_every_op_without_workspace_exists():
    for name in ops_without_workspace():
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

    known = definition_of(op(plain))
    assert known is not None
    assert known.memory is not None
    written = definition_of(op(out))
    assert (written.memory, written.provenance) == (known.memory, known.provenance)
    assert definition_of(torch.ops.aten.add.out) is None


def test_every_memory_model_names_an_op_and_its_source():
    for name, _, source in provenances():
        namespace, _, full = name.partition("::")
        packet, _, overload = full.partition(".")
        assert hasattr(getattr(torch.ops, namespace), packet), name
        assert (overload or "default") in getattr(getattr(torch.ops, namespace), packet).overloads()
        assert source.startswith("aten/src/ATen/")
