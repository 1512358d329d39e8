"""Ops that take half precision on CUDA, and on the CPU only single precision: values, gradients."""

from __future__ import annotations

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from torch.nn import functional

from pytorch_memlab import simulate

CLASSES = torch.tensor([2, 0, 1])
LABELS = torch.tensor([[2, 0, -1, -1], [1, -1, -1, -1], [3, 2, 1, -1]])

CALLS = {
    "avg_pool3d": ((2, 3, 4, 6, 6), lambda x: functional.avg_pool3d(x, 2)),
    "bilinear": (
        (1, 2, 8, 8),
        lambda x: functional.interpolate(x, (5, 5), mode="bilinear", antialias=True),
    ),
    "bicubic": (
        (1, 2, 8, 8),
        lambda x: functional.interpolate(x, (5, 5), mode="bicubic", antialias=True),
    ),
    "multi_margin": (
        (3, 4),
        lambda x: functional.multi_margin_loss(x, CLASSES.to(x.device), weight=x[0].detach().abs()),
    ),
    "multilabel_margin": (
        (3, 4),
        lambda x: functional.multilabel_margin_loss(x, LABELS.to(x.device), reduction="sum"),
    ),
}


@computed_or_dry
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", CALLS)
def test_ops_that_the_cpu_computes_in_single_precision_only(name, dtype, compute):
    shape, call = CALLS[name]
    torch.manual_seed(0)
    x = torch.randn(shape).to(dtype)
    with pytest.raises(RuntimeError, match="not implemented for"):
        call(x)
    single = x.float().requires_grad_()
    expected = call(single)
    expected.sum().backward()
    with simulate("1GiB", compute=compute):
        half = x.cuda().requires_grad_()
        found = call(half)
        found.sum().backward()
        assert (found.dtype, half.grad.dtype) == (dtype, dtype)
        assert (found.shape, half.grad.shape) == (expected.shape, x.shape)
        if compute:
            torch.testing.assert_close(found.cpu(), expected.to(dtype))
            torch.testing.assert_close(half.grad.cpu(), single.grad.to(dtype), rtol=0.02, atol=0.02)


@computed_or_dry
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_leaks_drawn_in_half_precision_are_those_of_their_gradient(dtype, in_place, compute):
    with simulate("1GiB", compute=compute):
        x = torch.full((64,), -1.0, dtype=dtype, device="cuda", requires_grad=True)
        given = x * 1
        leaked = functional.rrelu(given, training=True, inplace=in_place)
        leaked.sum().backward()
        assert (leaked.dtype, x.grad.dtype) == (dtype, dtype)
        assert (leaked.data_ptr() == given.data_ptr()) is in_place
        if compute:
            assert leaked.unique().numel() > 1
            assert leaked.max() <= -0.12
            assert leaked.min() >= -0.34
            assert torch.equal(x.grad, -leaked)
