"""Errors of a program name its lines and torch's, and none of the simulation, as C++ has none."""

from __future__ import annotations

import traceback

import pytest
import torch

from pytorch_memlab import simulate
from pytorch_memlab._common.user_code import OWN_FOLDER

MIB = 2**20


class Doubled(torch.autograd.Function):
    """An op of the program, whose backward pass fails."""

    @staticmethod
    def forward(_ctx, tensor):
        return tensor * 2

    @staticmethod
    def backward(_ctx, _gradient):
        raise RuntimeError("in backward")


class Large(Doubled):
    """One whose backward pass needs more than there is."""

    @staticmethod
    def backward(_ctx, _gradient):
        return large("cuda")


def large(device):
    return torch.empty(100 * MIB, dtype=torch.uint8, device=device)


def weight():
    return torch.ones(4, device="cuda", requires_grad=True)


CALLS = {
    "made": lambda: large("cuda"),
    "cuda": lambda: large("cpu").cuda(),
    "to": lambda: large("cpu").to("cuda"),
    "to with a gradient": lambda: torch.empty(25 * MIB, requires_grad=True).to("cuda"),
    "module.cuda": lambda: torch.nn.Linear(6000, 6000).cuda(),
    "module.to": lambda: torch.nn.Linear(6000, 6000).to("cuda"),
    "as_tensor": lambda: torch.as_tensor(large("cpu"), device="cuda"),
    "type": lambda: large("cpu").type("torch.cuda.ByteTensor"),
    "new_tensor": lambda: weight().new_tensor(large("cpu").numpy()),
    "storage.cuda": lambda: large("cpu").untyped_storage().cuda(),
    "storage.resize_": lambda: weight().untyped_storage().resize_(100 * MIB),
    "backward": lambda: Doubled.apply(weight()).sum().backward(),
    "backward without memory": lambda: Large.apply(weight()).sum().backward(),
    "grad": lambda: torch.autograd.grad(Doubled.apply(weight()).sum(), [weight()]),
    "no such GPU": lambda: torch.zeros(1).cuda(7),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_no_frame_of_the_simulation(call):
    with simulate("64MiB"), pytest.raises(RuntimeError) as caught:
        call()
    files = [frame.filename for frame in traceback.extract_tb(caught.tb)]
    assert [name for name in files if name.startswith(OWN_FOLDER)] == []
    assert files[-1 if caught.value.args[0] == "in backward" else 1] == __file__


def test_frames_of_torch_around_a_failing_call_stay():
    with simulate("64MiB"), pytest.raises(torch.OutOfMemoryError) as caught:
        torch.nn.Linear(6000, 6000).cuda()
    names = [frame.name for frame in traceback.extract_tb(caught.tb)[1:]]
    assert names == ["cuda", "_apply", "<lambda>"]


def test_a_failed_backward_pass_keeps_its_graph_as_long_as_its_error():
    # As the frames of ``Tensor.backward`` and ``torch.autograd.backward`` do on a GPU.
    with simulate("40MiB", context=0):
        leaf = torch.ones(4 * MIB, device="cuda", requires_grad=True)
        with pytest.raises(torch.OutOfMemoryError) as caught:
            leaf.exp().sum().backward()
        assert torch.cuda.memory_allocated() == 32 * MIB + 1024  # the result of exp, two scalars
        del caught
        assert torch.cuda.memory_allocated() == 16 * MIB
