"""Errors of a program name its lines and torch's, and none of the simulation, as C++ has none."""

from __future__ import annotations

import io
import shutil
import traceback
from pathlib import Path

import numpy as np
import pytest
import torch
from support.computed_or_dry import computed_or_dry
from torch.utils.data import DataLoader

from pytorch_memlab import simulate
from pytorch_memlab._common.frames.user_code import OWN_FOLDER

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


def saved(value):
    """A file of ``torch.save`` in memory."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


class Refusing(Doubled):
    """An op of the program, whose forward pass fails."""

    @staticmethod
    def forward(_ctx, _tensor):
        raise ValueError("in forward")


class Unpinned:
    """A sample that pins itself, and fails."""

    def pin_memory(self):
        raise RuntimeError("pinned")


def of_no_rank(device):
    return torch.ones(2, device=device, requires_grad=True).exp()


REFUSED = {
    "cuda of a list": lambda: torch.ones(2).cuda([]),
    "cuda of a name": lambda: torch.ones(2).cuda("cpu"),
    "to a wrong format": lambda: torch.ones(2).to("cuda", memory_format=3),
    "to an unknown option": lambda: torch.ones(2).to(foo="cuda"),
    "to an unknown device": lambda: torch.ones(2).to("gpu"),
    "module.to an unknown device": lambda: torch.nn.Linear(2, 2).to("gpu"),
    "module.to a meta module": lambda: torch.nn.Linear(2, 2, device="meta").cuda(),
    "module.to_empty": lambda: torch.nn.Linear(6000, 6000, device="meta").to_empty(device="cuda"),
    "a wrong input": lambda: torch.nn.Linear(3, 4).cuda()(weight()[None, :2]),
    "a gradient of a number": lambda: setattr(weight(), "grad", 3),
    "load": lambda: torch.load(saved(large("cpu")), map_location="cuda"),
    "load to no such GPU": lambda: torch.load(saved(torch.ones(2)), map_location="cuda:9"),
    "load no file": lambda: torch.load("/nonexistent/x.pt", map_location="cuda"),
    "load with a function": lambda: torch.load(saved(torch.ones(2)), map_location=lambda *_: 1 / 0),
    "load a class": lambda: torch.load(saved({"a": Unpinned()}), map_location="cuda"),
    "save to no folder": lambda: torch.save(weight(), "/nonexistent/x.pt"),
    "pin_memory of a loader": lambda: list(
        DataLoader([Unpinned()], pin_memory=True, batch_size=None)
    ),
    "pin_memory": lambda: weight().pin_memory(),
    "backward of no scalar": lambda: of_no_rank("cuda").backward(),
    "backward of another device": lambda: of_no_rank("cuda").backward(torch.ones(2)),
    "backward twice": lambda: [one.backward() for one in [of_no_rank("cuda").sum()] * 2],
    "grad of what is unused": lambda: torch.autograd.grad(of_no_rank("cuda").sum(), [weight()]),
    "forward of a function": lambda: Refusing.apply(weight()),
    "copy_": lambda: weight().detach().copy_(torch.ones(3)),
    "copy_ of a word": lambda: weight().detach().copy_("a"),
    "copy_ of a storage": lambda: weight().untyped_storage().copy_(3),
    "an index": lambda: weight()[9],
    "an index of a word": lambda: weight()["a"],
    "an index on another device": lambda: torch.ones(3)[weight().long()],
    "writing to an index": lambda: weight().detach().__setitem__(9, 1),
    "item": lambda: weight().item(),
    "new": lambda: weight().new("a"),
    "tensor of a word": lambda: torch.tensor("a", device="cuda"),
    "tensor of ragged lists": lambda: torch.tensor([1, [2]], device="cuda"),
    "tensor of an object": lambda: torch.as_tensor(object(), device="cuda"),
    "asarray of a word": lambda: torch.asarray("abc", device="cuda"),
    "FloatTensor of a word": lambda: torch.cuda.FloatTensor("a"),
    "from_numpy": lambda: torch.from_numpy(weight()),
    "out on another device": lambda: torch.ones(2, out=torch.ones(2), device="cuda"),
    "a state of a generator": lambda: torch.cuda.set_rng_state(torch.ones(3)),
    "a fraction": lambda: torch.cuda.set_per_process_memory_fraction(2.0),
    "a snapshot in no folder": lambda: torch.cuda.memory._dump_snapshot("/nonexistent/a"),
    "from_dlpack": lambda: np.from_dlpack(weight().detach()),
    "numpy.load": lambda: np.load("/nonexistent/a.npy"),
    "read_text": lambda: Path("/nonexistent/a").read_text(),
    "remove": lambda: Path("/nonexistent/a").unlink(),
    "rmtree": lambda: shutil.rmtree("/nonexistent"),
}


@computed_or_dry
@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_no_frame_of_the_simulation_where_arguments_are_refused(call, compute):
    with simulate("64MiB", compute=compute), pytest.raises(Exception) as caught:  # noqa: PT011
        call()
    files = [frame.filename for frame in traceback.extract_tb(caught.tb)]
    assert [name for name in files if name.startswith(OWN_FOLDER)] == []
    assert files[1] == __file__


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
