"""Views of one tensor: they take a short way through the dispatch mode, and are as on a GPU."""

from __future__ import annotations

import pytest
import torch

from pytorch_memlab.simulation import simulate
from pytorch_memlab.simulation.dispatch import device_mode
from pytorch_memlab.simulation.ops.core.op_info import op_info

VIEWS = {
    "t": lambda x: x.t(),
    "view": lambda x: x.view(6),
    "view of another type": lambda x: x.view(torch.int32),
    "expand": lambda x: x.expand(4, 2, 3),
    "split": lambda x: x.split(1),
    "unbind": lambda x: x.unbind(),
    "slice": lambda x: x[:, 1:],
    "as_strided": lambda x: x.as_strided((2, 2), (1, 1)),
    "detach": lambda x: x.detach(),
    "alias": lambda x: torch.ops.aten.alias(x),
}


@pytest.fixture
def calls(monkeypatch):
    """The ops for which a record of their call is made, from now on."""
    made = []

    class Counted(device_mode.DispatchedCall):
        def __init__(self, machine, gradients, info, op, args, kwargs):
            made.append(str(op))
            super().__init__(machine, gradients, info, op, args, kwargs)

    monkeypatch.setattr(device_mode, "DispatchedCall", Counted)
    return made


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("compute", [True, False])
def test_a_view_is_where_its_tensor_is_takes_no_memory_and_no_record(name, compute, calls):
    with simulate("24GiB", count=2, compute=compute):
        torch.zeros(1, device="cuda:0")
        x = torch.arange(6.0, device="cuda:1").view(2, 3)
        before = torch.cuda.memory_stats(1)
        calls.clear()
        found = VIEWS[name](x)
        assert calls == []
        for view in found if isinstance(found, tuple) else [found]:
            assert str(view.device) == "cuda:1"
            assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        assert torch.cuda.memory_stats(1) == before
        if compute:
            expected = VIEWS[name](torch.arange(6.0).view(2, 3))
            assert [one.tolist() for one in found] == [one.tolist() for one in expected]


def test_other_tensors_than_one_of_a_gpu_with_real_numbers_have_a_record(calls):
    with simulate("24GiB"):
        on_cpu = torch.zeros(2, 3)
        of_complex = torch.zeros(2, 3, dtype=torch.complex64, device="cuda")
        sparse = torch.eye(3, device="cuda").to_sparse()
        calls.clear()
        for tensor in (on_cpu, of_complex, sparse):
            torch.ops.aten.detach(tensor)
        assert calls == ["aten.detach.default"] * 3


def test_a_view_that_does_not_fit_is_refused_as_on_the_cpu(calls):
    with simulate("24GiB"):
        x = torch.zeros(2, 3, device="cuda")
        with pytest.raises(RuntimeError) as refused:
            x.view(7)
    assert str(refused.value) == "shape '[7]' is invalid for input of size 6"
    assert refused.value.__context__ is None


@pytest.mark.parametrize(
    ("op", "is_one"),
    [
        (torch.ops.aten.permute.default, True),
        (torch.ops.aten.view_as_real.default, True),
        (torch.ops.aten._make_dual.default, False),
        (torch.ops.aten._nested_view_from_buffer.default, False),
        (torch.ops.aten.add_.Tensor, False),
        (torch.ops.aten._unsafe_view.default, False),
        (torch.ops.aten.resize_.default, False),
    ],
)
def test_an_op_is_a_view_of_one_tensor_by_its_schema(op, is_one):
    assert op_info(op).is_view_of_one is is_one
