"""Constructors of tensors: what is copied, and where the result is."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.attention.bias

from pytorch_memlab import simulate


@pytest.fixture(params=[True, False], ids=["computed", "shapes"], autouse=True)
def simulated(request):
    with simulate("24GiB", count=2, compute=request.param):
        yield


@pytest.mark.parametrize("name", ["as_tensor", "asarray"])
def test_a_tensor_that_is_there_already_is_not_copied(name):
    make = partial(getattr(torch, name), **{"requires_grad": True} if name == "asarray" else {})
    x = torch.ones(1000, device="cuda", requires_grad=True)
    y = x * 2
    before = torch.cuda.memory_allocated()
    for device in ("cuda", "cuda:0", torch.device("cuda", 0), x.device):
        made = make(y, device=device, dtype=torch.float32)
        assert made.data_ptr() == y.data_ptr()
        assert made.grad_fn is y.grad_fn
    assert torch.cuda.memory_allocated() == before
    half = make(y, device="cuda", dtype=torch.half)
    assert torch.cuda.memory_allocated() == before + 2048
    assert half.requires_grad
    other = make(y, device="cuda:1")
    assert (str(other.device), other.requires_grad) == ("cuda:1", True)
    assert torch.cuda.memory_allocated() == before + 2048
    assert torch.cuda.memory_allocated(1) == 4096
    assert make(y, device="cpu").device.type == "cpu"


@pytest.mark.parametrize("name", ["as_tensor", "asarray"])
def test_a_default_device_holds_for_tensors_too(name):
    make = getattr(torch, name)
    x = torch.ones(3)
    for data in (x, x.cuda(), x.cuda(1), x.numpy(), [1.0, 1.0, 1.0]):
        with torch.device("cuda:1"):
            assert str(make(data).device) == "cuda:1"
    assert make(x).data_ptr() == x.data_ptr()


def test_asarray_copies_always_or_never():
    x = torch.ones(1000, device="cuda")
    before = torch.cuda.memory_allocated()
    made = [torch.asarray(x, copy=True), torch.asarray(x, device="cuda", copy=True)]
    assert torch.cuda.memory_allocated() == before + 2 * 4096
    assert torch.asarray(x, device="cuda", copy=False).data_ptr() == x.data_ptr()
    del made
    for data, source, target in (
        (x, "cuda:0", "cpu"),
        (x, "cuda:0", "cuda:1"),
        (torch.ones(3), "cpu", "cuda:0"),
        (np.ones(3), "cpu", "cuda:0"),
    ):
        words = f"can't alias tensor from device '{source}' to '{target}'"
        with pytest.raises(ValueError, match=words):
            torch.asarray(data, device=target, copy=False)
    with pytest.raises(ValueError, match="can't alias tensor with dtype"):
        torch.asarray(x, dtype=torch.half, device="cuda", copy=False)
    assert torch.cuda.memory_allocated() == before


def test_out_may_name_the_device_that_it_has():
    out = torch.empty(3, dtype=torch.int64, device="cuda")
    for make in (
        lambda **where: torch.zeros(3, **where),
        lambda **where: torch.full((3,), 1, **where),
        lambda **where: torch.randperm(3, **where),
    ):
        assert make(out=out, device="cuda") is out
        for where, asked in ((out, "cpu"), (out.cpu(), "cuda")):
            with pytest.raises(
                RuntimeError,
                match=f"device type {asked} does not match device type of out parameter",
            ):
                make(out=where, device=asked)
    assert torch.cuda.memory_allocated() == 512


class _Plain(torch.Tensor):
    pass


class _Named(torch.Tensor):
    def __new__(cls, *args, name):
        return super().__new__(cls, *args)

    def __init__(self, *args, name):
        self.label = name


def test_subclasses_of_tensors_are_made():
    x = torch.ones(2)
    for made in (_Plain([1.0, 1.0]), _Plain(x), _Plain(2).fill_(1), _Named(x, name="x")):
        assert isinstance(made, (_Plain, _Named))
        assert made.shape == (2,)
    assert made.label == "x"
    assert made.data_ptr() == x.data_ptr()
    assert type(_Plain()) is _Plain
    assert type(torch.Tensor(2)) is torch.Tensor
    with pytest.raises(TypeError, match="data must be a sequence"):
        _Plain(object())
    bias = torch.nn.attention.bias.causal_lower_right(2, 4)
    q, k = torch.ones(1, 1, 2, 8, device="cuda"), torch.ones(1, 1, 4, 8, device="cuda")
    out = torch.nn.functional.scaled_dot_product_attention(q, k, k, attn_mask=bias)
    assert (out.shape, out.device.type) == (q.shape, "cuda")
