"""Storages and types of earlier PyTorch, made on simulated GPUs."""

from __future__ import annotations

import numpy
import pytest
import torch

from pytorch_memlab import simulate

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(params=[True, False], ids=["computed", "shapes"], autouse=True)
def machine(request):
    with simulate("24GiB", count=2, compute=request.param) as machine:
        yield machine


@pytest.mark.parametrize(
    ("make", "nbytes"),
    [
        (lambda: torch.UntypedStorage(1000, device="cuda:1"), 1000),
        (lambda: torch.UntypedStorage(1000, device=torch.device("cuda", 1)), 1000),
        (lambda: torch.TypedStorage(250, dtype=torch.float32, device="cuda:1"), 1000),
    ],
)
def test_a_storage_is_made_on_its_gpu(make, nbytes):
    storage = make()
    assert (str(storage.device), storage.is_cuda, storage.nbytes()) == ("cuda:1", True, nbytes)
    assert torch.cuda.memory_allocated(1) == 1024
    tensor = torch.empty(0, dtype=torch.uint8, device="cuda:1")
    tensor.set_(getattr(storage, "_untyped_storage", storage))
    assert (tensor.numel(), str(tensor.device)) == (nbytes, "cuda:1")
    del storage
    assert torch.cuda.memory_allocated(1) == 1024
    del tensor
    assert torch.cuda.memory_allocated(1) == 0


def test_storages_elsewhere_take_nothing_of_a_gpu():
    assert torch.UntypedStorage(3).device.type == "cpu"
    assert torch.UntypedStorage(3, device="meta").device.type == "meta"
    assert torch.IntStorage(3).device.type == "cpu"
    assert torch.UntypedStorage([1, 2, 3]).tolist() == [1, 2, 3]
    assert torch.cuda.memory_allocated() == 0
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.UntypedStorage(3, device="cuda:7")


def test_legacy_storages_of_each_dtype():
    storage = torch.cuda.IntStorage(10)
    assert (storage.dtype, storage.device.type, len(storage)) == (torch.int32, "cuda", 10)
    assert torch.cuda.memory_allocated() == 512
    assert torch.cuda.HalfStorage([1.0, 2.0]).nbytes() == 4


def test_legacy_types_take_a_device():
    assert str(torch.cuda.FloatTensor(2, 3, device=1).device) == "cuda:1"
    assert torch.cuda.IntTensor([1, 2], device="cuda:1").dtype == torch.int32
    assert torch.cuda.memory_allocated(1) == 0
    assert str(torch.cuda.HalfTensor(3).device) == "cuda:0"
    with pytest.raises(RuntimeError, match="expects device type: cuda but device type: cpu"):
        torch.cuda.FloatTensor(2, device="cpu")


def test_legacy_types_share_the_memory_of_a_tensor_of_their_type():
    weight = torch.ones(300, device="cuda", requires_grad=True)
    shared = torch.cuda.FloatTensor(weight)
    assert (shared.data_ptr(), shared.requires_grad) == (weight.data_ptr(), True)
    assert torch.cuda.memory_allocated() == 1536
    for other in (torch.ones(3), torch.ones(3, dtype=torch.int64, device="cuda")):
        with pytest.raises(TypeError, match=r"expected torch\.cuda\.FloatTensor"):
            torch.cuda.FloatTensor(other)
    assert torch.cuda.FloatTensor(numpy.int64(3)).shape == (3,)


def test_a_gpus_type_can_be_the_default():
    try:
        torch.set_default_tensor_type(torch.cuda.HalfTensor)
        made = torch.zeros(3)
        assert (made.dtype, made.device.type) == (torch.float16, "cuda")
        assert torch.tensor([1.0]).is_cuda
        for made in (torch.Tensor([1e4]), torch.Tensor(2, 3), torch.Tensor()):
            assert (made.dtype, made.device.type) == (torch.float16, "cuda")
        on_cpu = torch.ones(2, device="cpu")
        assert torch.Tensor(on_cpu).data_ptr() == on_cpu.data_ptr()
        assert type(torch.nn.Parameter(made)) is torch.nn.Parameter

        class Named(torch.Tensor):
            pass

        named = Named([1.0, 2.0])
        assert (type(named), named.is_cuda) == (Named, True)
        torch.set_default_tensor_type("torch.cuda.DoubleTensor")
        assert torch.zeros(3).dtype == torch.float64
        with pytest.raises(TypeError, match="only floating-point types"):
            torch.set_default_tensor_type(torch.cuda.IntTensor)
    finally:
        torch.set_default_tensor_type(torch.FloatTensor)
    for made in (torch.zeros(3), torch.Tensor(3), torch.Tensor([1.0])):
        assert (made.dtype, made.device.type) == (torch.float32, "cpu")


def test_constructors_pin_what_they_make():
    for made in (
        torch.tensor([1.0], pin_memory=True),
        torch.ones(2).new_tensor([2.0], pin_memory=True),
        torch.ones(2, device="cuda").new_tensor([2.0], device="cpu", pin_memory=True),
        torch.tensor(torch.ones(2), pin_memory=True, requires_grad=True),
    ):
        assert made.is_pinned()
        assert made.device.type == "cpu"
    assert made.requires_grad
    assert not torch.tensor([1.0], pin_memory=False).is_pinned()
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        torch.tensor([1.0], device="cuda", pin_memory=True)
