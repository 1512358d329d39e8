"""Courtesy that restores tensors on another device."""

from __future__ import annotations

import pytest
import torch
from support.gpu_tensors import allocated, make_trainer, on_gpu

from pytorch_memlab.courtesy import Courtesy
from pytorch_memlab.errors import MemlabError, UnknownDeviceError

pytestmark = pytest.mark.usefixtures("gpu")


@pytest.mark.parametrize("place", ["cuda:1", "cpu"])
def test_restored_elsewhere(place):
    model, optimizer = make_trainer(torch.optim.Adam)
    inp = on_gpu(4, 16)[:, ::2]
    unnamed_view = on_gpu(8).view(2, 4)
    model(inp).sum().backward()
    optimizer.step()
    state = [value for each in optimizer.state.values() for value in each.values()]
    everything = [*model.parameters(), *state, inp, unnamed_view]
    gradients = [each.grad for each in model.parameters() if each.grad is not None]
    expected = [tensor.tolist() for tensor in everything]
    lender = Courtesy()
    lender.yield_memory()
    with pytest.raises(UnknownDeviceError):
        lender.restore("cuda:7")
    lender.restore(place)

    on_cpu = [value for value in state if value.dim() == 0]  # Adam's steps always were there
    moved = [tensor for tensor in everything if all(tensor is not each for each in on_cpu)]
    assert {str(tensor.device) for tensor in (*moved, *gradients)} == {place}
    assert [tensor.tolist() for tensor in everything] == expected
    assert allocated(0) == 0
    assert inp.stride() == (16, 2)
    optimizer.zero_grad()
    model(inp).sum().backward()
    optimizer.step()
    with pytest.raises(MemlabError, match="nothing to restore"):
        lender.restore()


@pytest.mark.parametrize("place", ["cuda:1", "cpu"])
def test_a_living_graph_cannot_be_restored_elsewhere(place):
    weight = on_gpu(4).requires_grad_()
    loss = (weight * weight).sum()
    other = on_gpu(3)
    lender = Courtesy()
    lender.yield_memory()
    with pytest.raises(MemlabError, match=r"^\d tensors? cannot change device: a graph of"):
        lender.restore(place)

    assert other.device.type == "cpu"
    del loss
    lender.restore(place)
    assert {str(weight.device), str(other.device)} == {place}
    assert weight.tolist() == [0, 1, 2, 3]
    weight.sum().backward()
    assert weight.grad.tolist() == [1] * 4


def test_a_step_may_be_restored_where_it_was_after_elsewhere_was_refused():
    weight = on_gpu(4).requires_grad_()
    loss = (weight * weight).sum()
    lender = Courtesy()
    lender.yield_memory()
    with pytest.raises(MemlabError, match="cannot change device"):
        lender.restore("cuda:1")
    lender.restore()

    loss.backward()
    assert weight.grad.tolist() == [0, 2, 4, 6]
