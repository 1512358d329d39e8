"""Tensors and modules that take their device from another tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from torch.utils import dlpack

from pytorch_memlab.simulation import simulate

FROM_DLPACK = dlpack.from_dlpack


def gpu_tensor() -> torch.Tensor:
    return torch.ones(3, dtype=torch.float16, device="cuda:1")


def shared(from_dlpack: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    with torch.cuda.device(1):  # others are not exported
        return from_dlpack(gpu_tensor())


CALLS = {
    "Tensor.to": lambda: torch.ones(2).to(gpu_tensor()),
    "Tensor.type_as": lambda: torch.ones(2).type_as(gpu_tensor()),
    "Module.to": lambda: torch.nn.Linear(2, 2).to(gpu_tensor()).weight,
    "Module.to(tensor=)": lambda: torch.nn.Linear(2, 2).to(tensor=gpu_tensor()).weight,
    "torch.tensor": lambda: torch.tensor(gpu_tensor()),
    "torch.as_tensor": lambda: torch.as_tensor(gpu_tensor()),
    "torch.from_dlpack": lambda: shared(torch.from_dlpack),
    "torch.utils.dlpack": lambda: shared(dlpack.from_dlpack),
    "a function imported before": lambda: shared(FROM_DLPACK),
    "a DLPack capsule": lambda: dlpack.from_dlpack(dlpack.to_dlpack(gpu_tensor())),
}


@pytest.mark.filterwarnings("ignore:To copy construct")
@pytest.mark.parametrize("compute", [True, False])
@pytest.mark.parametrize("name", CALLS)
def test_a_result_goes_to_the_gpu_of_the_other_tensor(name: str, compute: bool) -> None:
    with simulate("1GiB", count=2, compute=compute):
        result = CALLS[name]()
        assert (result.device, result.dtype) == (torch.device("cuda", 1), torch.float16)


@pytest.mark.parametrize("compute", [True, False])
def test_a_dlpack_capsule_shares_the_memory_of_its_tensor(compute: bool) -> None:
    with simulate("1GiB", compute=compute):
        tensor = torch.ones(4, 6, device="cuda")
        shared = dlpack.from_dlpack(dlpack.to_dlpack(tensor[1:, ::2]))
        assert shared.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
        assert (shared.shape, shared.stride(), shared.storage_offset()) == ((3, 3), (6, 2), 6)
        assert torch.cuda.memory_allocated() == 512
        del tensor
        assert torch.cuda.memory_allocated() == 512
        del shared
        assert torch.cuda.memory_allocated() == 0


def test_a_tensor_that_requires_a_gradient_is_no_dlpack_tensor() -> None:
    with simulate("1GiB"), pytest.raises((BufferError, RuntimeError), match="require gradient"):
        torch.from_dlpack(torch.ones(2, device="cuda", requires_grad=True))


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


@pytest.mark.parametrize(
    "read",
    [
        lambda storage: storage.cpu(),
        lambda storage: storage.cuda(),
        lambda storage: storage.to(device="cpu"),
        lambda storage: torch.UntypedStorage(12, device="cuda").copy_(storage),
    ],
)
def test_nothing_is_copied_out_of_a_meta_storage(read: Callable[[Any], object]) -> None:
    with simulate("t4"):
        storage = torch.UntypedStorage(12, device="meta")
        with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
            read(storage)
        assert torch.cuda.memory_allocated() in (0, 512)  # the one that was to be written


def test_a_meta_storage_stays_one() -> None:
    with simulate("t4"):
        storage = torch.UntypedStorage(12, device="meta")
        assert storage.clone().device == storage.to(device="meta").device == torch.device("meta")
        with pytest.raises(RuntimeError, match="_share_cuda_: only available on CUDA"):
            storage._share_cuda_()


@computed_or_dry
def test_tensors_without_data_are_not_copied_to_a_gpu(compute):
    with simulate("1GiB", compute=compute):
        meta = torch.empty(3, 3, device="meta")
        for copy in (
            lambda: meta.cuda(),
            lambda: meta.to("cuda"),
            lambda: meta.to("cuda", torch.float16),
            lambda: meta.cpu(),
        ):
            with pytest.raises(NotImplementedError, match=r"^Cannot copy out of meta tensor; no"):
                copy()
        with pytest.raises(NotImplementedError, match=r"use torch\.nn\.Module\.to_empty"):
            torch.nn.Linear(3, 3, device="meta").to("cuda")
        assert torch.cuda.memory_allocated() == 0
        module = torch.nn.Linear(3, 3, device="meta").to_empty(device="cuda")
        assert module.weight.is_cuda
        assert torch.empty(3, device="cuda").to("meta").is_meta


@computed_or_dry
def test_a_product_with_a_tensor_without_data_has_none(compute):
    with simulate("1GiB", compute=compute):
        tensor = torch.ones(3, 3, device="cuda")
        allocated = torch.cuda.memory_allocated()
        product = torch.mm(torch.empty(2, 3, device="meta"), tensor)
        assert product.is_meta
        torch.mm(tensor, torch.empty(3, 2, device="meta"))  # as on a CPU, on any device
        assert torch.cuda.memory_allocated() == allocated


def test_a_tensor_takes_no_storage_of_another_device():
    with simulate("1GiB", count=2):
        tensor, host = gpu_tensor(), torch.ones(3, dtype=torch.float16)
        for source in (host, host.untyped_storage(), torch.ones(3, device="cuda:0").half()):
            words = (
                rf'on device "cuda:1" to a storage on different device "{source.device}"\.  This'
            )
            with pytest.raises(RuntimeError, match=words):
                tensor.set_(source)
        with pytest.raises(RuntimeError, match='on device "cpu" to a storage on different device'):
            host.set_(tensor)
        assert tensor.set_(gpu_tensor() + 1).tolist() == [2.0] * 3
        assert tensor.set_(gpu_tensor().untyped_storage(), 1, (2,), (1,)).tolist() == [1.0] * 2
        assert tensor.set_().shape == (0,)


def test_calls_of_python_for_each_element_are_refused_on_a_gpu():
    with simulate("1GiB", count=2):
        with pytest.raises(TypeError, match=r"^apply_ is only implemented on CPU tensors$"):
            gpu_tensor().apply_(lambda value: value)
        with pytest.raises(TypeError, match=r"^map_ is only implemented on CPU tensors$"):
            gpu_tensor().map_(gpu_tensor(), lambda value, _other: value)
        host = torch.ones(2)
        assert host.apply_(lambda value: value + 1).tolist() == [2.0, 2.0]
        assert host.map_(host, lambda value, other: value + other).tolist() == [4.0, 4.0]


@computed_or_dry
def test_memory_of_a_gpu_is_not_pinned(compute):
    with simulate("1GiB", compute=compute):
        for make in (
            lambda: torch.ones(2, device="cuda", pin_memory=True),
            lambda: torch.empty(2, device="cuda", pin_memory=True),
            lambda: torch.tensor([1.0], device="cuda", pin_memory=True),
        ):
            with pytest.raises(RuntimeError, match=r"^Only dense CPU tensors can be pinned$"):
                make()
        assert torch.cuda.memory_allocated() == 0
