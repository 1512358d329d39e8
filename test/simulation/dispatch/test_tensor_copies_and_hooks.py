"""Copies of tensors, saved-tensor hooks and tensor subclasses on a simulated GPU."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
from torch import nn

from pytorch_memlab import simulate
from pytorch_memlab.devices import get_device
from pytorch_memlab.errors import UnknownDeviceError


@pytest.fixture(params=[True, False], ids=["computed", "shapes"], autouse=True)
def machine(request):
    with simulate("24GiB", compute=request.param) as machine:
        yield machine


def allocated() -> int:
    return torch.cuda.memory_allocated()


def test_copies_of_tensors_go_when_they_die():
    tensor = torch.ones(32, device="cuda")
    for each in (tensor, nn.Parameter(tensor), tensor[:16]):
        before = allocated()
        twin = copy.deepcopy(each)
        assert twin.is_cuda
        assert allocated() - before == 512
        del twin
        assert allocated() == before


def test_a_storage_that_leaves_the_gpu_takes_none_of_it():
    storage = torch.ones(2**20, device="cuda").untyped_storage()
    before = allocated()
    on_host = storage.cpu()
    assert on_host.device.type == "cpu"
    assert allocated() == before
    assert allocated() + 4 * 2**20 == (on_host.cuda(), allocated())[1]


@pytest.mark.parametrize("pin", [True, False])
def test_what_is_saved_on_the_host_takes_nothing_of_the_gpu(pin):
    x = torch.ones(1024, device="cuda", requires_grad=True)
    before = allocated()
    with torch.autograd.graph.save_on_cpu(pin_memory=pin):
        y = x * x
    assert allocated() - before == y.nbytes
    y.sum().backward()
    assert x.grad.is_cuda


def test_what_a_hook_makes_is_where_it_says():
    x = torch.ones(1024, device="cuda", requires_grad=True)
    places = []

    def pack(tensor):
        kept = torch.empty(tensor.shape)
        places.append((kept.device.type, torch.empty(4, device="cuda").device.type))
        return kept.copy_(tensor)

    def unpack(kept):
        places.append((torch.empty(4).device.type, kept.cuda().device.type))
        return kept.cuda()

    before = allocated()
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        y = x.exp()
    assert allocated() - before == y.nbytes
    y.sum().backward()
    assert places == [("cpu", "cuda")] * 2


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize("move", [lambda model: model.to("cuda"), nn.Module.cuda])
def test_parameters_without_data_move(move):
    model = move(nn.LazyLinear(4, bias=False))
    x = torch.ones(2, 3, device="cuda")
    with torch.no_grad():
        model(x)
    assert model.weight.device == torch.device("cuda", 0)
    assert model.weight.shape == (4, 3)
    before = allocated()
    del model
    assert before - allocated() == 512


def test_a_class_with_functions_of_its_own_goes_backward():
    class Own(torch.Tensor):
        seen: list[str] = []  # noqa: RUF012 - of the class, on purpose

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            cls.seen.append(func.__name__)
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))

    x = torch.ones(3, device="cuda", requires_grad=True)
    (x.as_subclass(Own) * 2).sum().as_subclass(Own).backward()
    if "handle_torch_function" in inspect.getsource(torch.autograd.backward):
        assert "backward" in Own.seen  # torch 2.6 asks no class there
    assert "mul" in Own.seen
    assert x.grad.device == torch.device("cuda", 0)


def test_a_device_that_is_not_there(machine):
    del machine
    with pytest.raises(UnknownDeviceError, match=r"no device 7 here: there is cuda:0, and cpu$"):
        get_device(7)
