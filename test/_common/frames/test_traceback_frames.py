"""Tracebacks of errors under simulation and profilers: the program's lines, and none of theirs."""

from __future__ import annotations

import traceback
import weakref
from contextlib import contextmanager

import pytest
import torch

from pytorch_memlab import simulate
from pytorch_memlab.devices import get_device
from pytorch_memlab.errors import UnmodelledOpError
from pytorch_memlab.simulation.dispatch.dispatched_call import DispatchedCall
from pytorch_memlab.tensors.lines import recorded_lines


@pytest.fixture
def gpu():
    with simulate("24GiB"):
        yield


def names(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def test_shapes_that_do_not_match_show_the_programs_line(gpu):
    def add():
        return torch.ones(3, device="cuda") + torch.ones(4, device="cuda")

    with pytest.raises(RuntimeError, match="must match the size of tensor b") as caught:
        add()
    assert names(caught.value) == [
        "test_shapes_that_do_not_match_show_the_programs_line",
        "add",
    ]


def test_frames_of_torch_that_call_are_shown_as_on_a_gpu(gpu):
    layer = torch.nn.Linear(4, 5).cuda()
    x = torch.ones(2, 3, device="cuda")
    with pytest.raises(RuntimeError, match="mat1 and mat2") as caught:
        layer(x)
    assert names(caught.value)[1:] == [
        "_wrapped_call_impl",
        "_call_impl",
        "forward",
    ]


def test_what_the_program_is_called_for_within_an_op_is_shown(gpu):
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad.view(7)

    x = torch.ones(3, device="cuda", requires_grad=True)
    with pytest.raises(RuntimeError, match=r"'\[7\]' is invalid") as caught:
        Fails.apply(x).sum().backward()
    shown = names(caught.value)
    assert shown[-1] == "backward"
    ours = {"__torch_dispatch__", "__torch_function__", "_run", "compute"}
    assert not ours & set(shown)


def test_a_mistake_of_the_simulation_itself_shows_where(gpu, monkeypatch):
    monkeypatch.delattr(DispatchedCall, "_computed")
    with pytest.raises(AttributeError, match="_computed") as caught:
        torch.ones(3, device="cuda")
    assert "__torch_dispatch__" in names(caught.value)


def test_a_refusal_shows_the_programs_line(gpu):
    with simulate("24GiB", strict=True):
        x = torch.ones(3, 3, device="cuda")
        with pytest.raises(UnmodelledOpError) as caught:
            torch.linalg.qr(x)
    assert names(caught.value) == ["test_a_refusal_shows_the_programs_line"]


@contextmanager
def tracked_host():
    device = get_device("cpu")
    device.start_tracking()
    try:
        yield
    finally:
        device.stop_tracking()


@pytest.mark.parametrize(
    ("mode", "device"),
    [(lambda: simulate("24GiB"), "cuda"), (tracked_host, "cpu"), (recorded_lines, "cpu")],
    ids=["simulation", "host", "lines"],
)
def test_an_error_that_is_kept_keeps_no_tensor_that_the_program_does_not(mode, device):
    made = []

    def make(count):
        tensor = torch.ones(count, device=device)
        made.append(weakref.ref(tensor))
        return tensor

    with mode():
        with pytest.raises(RuntimeError, match="must match the size of tensor b") as caught:
            make(3) + make(4)
        assert [tensor() for tensor in made] == [None, None]
        own = [name for name in names(caught.value) if name.startswith("__torch_")]
        assert not own
