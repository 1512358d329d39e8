"""Errors of a program name its lines and torch's, and none of the simulation, as C++ has none."""

from __future__ import annotations

import traceback

import numpy as np
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
    "set_device": lambda: torch.cuda.set_device(9),
    "device": lambda: torch.cuda.device(9).__enter__(),
    "synchronize": lambda: torch.cuda.synchronize(9),
    "memory_allocated": lambda: (weight(), torch.cuda.memory_allocated(9)),
    "mem_get_info": lambda: torch.cuda.mem_get_info(9),
    "current_stream": lambda: torch.cuda.current_stream(9),
    "Stream": lambda: torch.cuda.Stream(device=9),
    "torch.Stream": lambda: torch.Stream("cuda:9"),
    "Event": lambda: torch.cuda.Event().elapsed_time(torch.cuda.Event()),
    "Generator": lambda: torch.Generator("cuda:9"),
    "numpy": lambda: weight().numpy(),
    "asarray": lambda: np.asarray(weight()),
    "float": lambda: float(weight().detach()),
    "wrong argument": lambda: torch.add(weight(), "a"),
    "a gradient of the CPU": lambda: setattr(weight(), "grad", torch.ones(4)),
    "a gradient of a GPU": lambda: setattr(torch.ones(4), "grad", weight()),
    "FloatTensor": lambda: torch.cuda.FloatTensor(25 * MIB),
    "caching_allocator_alloc": lambda: torch.cuda.caching_allocator_alloc(100 * MIB),
    "UntypedStorage": lambda: torch.UntypedStorage(100 * MIB, device="cuda"),
    "refused by name": lambda: torch.cuda.change_current_allocator(None),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_no_frame_of_the_simulation(call):
    with simulate("64MiB"), pytest.raises((RuntimeError, TypeError, ValueError)) as caught:
        call()
    files = [frame.filename for frame in traceback.extract_tb(caught.tb)]
    assert [name for name in files if name.startswith(OWN_FOLDER)] == []
    assert files[-1 if caught.value.args[0] == "in backward" else 1] == __file__


def test_frames_of_what_may_be_a_mistake_of_the_simulation_stay(monkeypatch):
    with simulate("64MiB") as machine:
        monkeypatch.setattr(machine, "gpus", None)
        with pytest.raises(TypeError) as caught:
            torch.cuda.set_device(0)
        monkeypatch.undo()
    files = [frame.filename for frame in traceback.extract_tb(caught.tb)]
    assert [name for name in files if name.startswith(OWN_FOLDER)] != []


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
