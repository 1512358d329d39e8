"""Tensors and modules that take their device from another tensor."""

from __future__ import annotations

import pytest
import torch
from torch.utils import dlpack

from pytorch_memlab.simulation import simulate


def gpu_tensor() -> torch.Tensor:
    return torch.ones(3, dtype=torch.float16, device="cuda:1")


CALLS = {
    "Tensor.to": lambda: torch.ones(2).to(gpu_tensor()),
    "Tensor.type_as": lambda: torch.ones(2).type_as(gpu_tensor()),
    "Module.to": lambda: torch.nn.Linear(2, 2).to(gpu_tensor()).weight,
    "Module.to(tensor=)": lambda: torch.nn.Linear(2, 2).to(tensor=gpu_tensor()).weight,
    "torch.tensor": lambda: torch.tensor(gpu_tensor()),
    "torch.as_tensor": lambda: torch.as_tensor(gpu_tensor()),
    "torch.from_dlpack": lambda: torch.from_dlpack(gpu_tensor()),
    "torch.utils.dlpack": lambda: dlpack.from_dlpack(gpu_tensor()),
}


@pytest.mark.filterwarnings("ignore:To copy construct")
@pytest.mark.parametrize("compute", [True, False])
@pytest.mark.parametrize("name", CALLS)
def test_a_result_goes_to_the_gpu_of_the_other_tensor(name: str, compute: bool) -> None:
    with simulate("1GiB", count=2, compute=compute):
        result = CALLS[name]()
        assert (result.device, result.dtype) == (torch.device("cuda", 1), torch.float16)


def test_a_tensor_of_the_cpu_takes_a_result_away_from_the_gpu() -> None:
    with simulate("1GiB", count=2):
        host = torch.ones(1)
        module = torch.nn.Linear(2, 2, device="cuda:1").to(host)
        assert {one.device for one in module.parameters()} == {host.device}
        assert gpu_tensor().type_as(host).device == host.device
        assert torch.cuda.memory_allocated(1) == 0


def test_type_as_is_the_tensor_itself_where_nothing_changes() -> None:
    with simulate("1GiB", count=2):
        tensor = gpu_tensor()
        assert tensor.type_as(gpu_tensor()) is tensor


@pytest.mark.parametrize("make", [torch.tensor, torch.as_tensor, torch.asarray])
def test_a_list_of_numbers_of_a_gpu_makes_a_tensor_of_the_cpu(make: object) -> None:
    name = make.__name__
    with simulate("1GiB", count=2):
        one, other = gpu_tensor()[:2]
        made = getattr(torch, name)([one, other])
        assert (made.device.type, made.tolist()) == ("cpu", [1.0, 1.0])


def test_the_index_of_the_gpu_and_sharing_are_told_as_cuda_does() -> None:
    with simulate("1GiB", count=2):
        assert (torch.get_device(gpu_tensor()), torch.get_device(torch.ones(1))) == (1, -1)
        assert (gpu_tensor().is_shared(), torch.ones(1).is_shared()) == (True, False)
    assert torch.get_device(torch.ones(1)) == -1
