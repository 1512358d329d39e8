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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("spatial", [2, 3])
def test_grids_are_sampled_in_single_precision(spatial, mode, dtype):
    if mode == "bicubic" and spatial == 3:
        pytest.skip("PyTorch has none for volumes")
    torch.manual_seed(0)
    pictures = torch.randn(2, 8, *[16] * spatial).to(dtype)
    places = (torch.rand(2, *[9] * spatial, spatial) * 2 - 1).to(dtype)

    def sample(*args):
        return functional.grid_sample(*args, mode=mode, align_corners=True)

    expected = sample(pictures.double(), places.double()).to(dtype)
    with simulate("1GiB"):
        found = sample(pictures.cuda().requires_grad_(), places.cuda())
        assert found.dtype == dtype
        torch.testing.assert_close(found.detach().cpu(), expected)
        found.sum().backward()


@computed_or_dry
@pytest.mark.parametrize(
    "reduce",
    [
        torch.sum,
        torch.prod,
        torch.nansum,
        lambda x: torch.sum(x, 1),
        lambda x: torch.prod(x, 0),
        lambda x: torch.sum(x, 0, out=torch.empty(0, dtype=x.dtype, device=x.device)),
    ],
)
def test_complex_half_precision_is_reduced_in_complex_single(reduce, compute):
    torch.manual_seed(0)
    wide = torch.randn(5, 6, dtype=torch.complex64)
    half = wide.to(torch.complex32)
    with simulate("1GiB", compute=compute):
        found = reduce(half.cuda())
        assert found.dtype == torch.complex32
        if compute:
            by_sum = {torch.nansum: torch.sum}.get(reduce, reduce)
            expected = by_sum(half.to(torch.complex64))
            torch.testing.assert_close(
                found.cpu().to(torch.complex64), expected, rtol=2e-3, atol=2e-3
            )


@computed_or_dry
@pytest.mark.parametrize("name", ["exp", "sqrt", "tanh", "sigmoid", "log", "atan"])
def test_functions_of_complex_half_precision(name, compute):
    torch.manual_seed(0)
    half = torch.randn(5, 6, dtype=torch.complex64).to(torch.complex32)
    call = getattr(torch, name)
    with simulate("1GiB", compute=compute):
        found, written = call(half.cuda()), half.cuda()
        assert getattr(written, f"{name}_")() is written
        assert found.dtype == written.dtype == torch.complex32
        if compute:
            expected = call(half.to(torch.complex64))
            for result in (found, written):
                torch.testing.assert_close(
                    result.cpu().to(torch.complex64), expected, rtol=2e-3, atol=2e-3
                )


@computed_or_dry
@pytest.mark.parametrize(
    "call",
    [
        torch.div,
        torch.pow,
        torch.logaddexp,
        lambda x, y: x / 2,
        lambda x, y: x**2,
        lambda x, y: 2**x,
        lambda x, y: x.clone().div_(y),
        lambda x, y: x.clone().pow_(2),
        lambda x, y: x.clone().pow_(y),
        lambda x, y: torch.lerp(x, y, 0.25),
        lambda x, y: torch.lerp(x, y, y),
        lambda x, y: x.clone().lerp_(y, 0.25),
        lambda x, y: x.clone().lerp_(y, y),
        lambda x, y: x.nanmean(0),
    ],
)
def test_functions_of_two_operands_of_complex_half_precision(call, compute):
    torch.manual_seed(0)
    one, other = (torch.randn(5, 6, dtype=torch.complex64).to(torch.complex32) for _ in range(2))
    with simulate("1GiB", compute=compute):
        found = call(one.cuda(), other.cuda())
        assert found.dtype == torch.complex32
        if compute:
            wide = [operand.to(torch.complex64) for operand in (one, other)]
            torch.testing.assert_close(
                found.cpu().to(torch.complex64),
                wide[0].mean(0) if found.dim() == 1 else call(*wide),
                rtol=4e-3,
                atol=4e-3,
            )


def test_the_wider_operand_of_complex_half_precision_decides():
    with simulate("1GiB"):
        half = torch.ones(3, dtype=torch.complex32, device="cuda")
        wide = torch.full((3,), 1j, dtype=torch.complex64, device="cuda")
        assert (half / wide).dtype == (wide / half).dtype == torch.complex64
        assert (half / wide).tolist() == [-1j] * 3
        with pytest.raises(RuntimeError, match="result type ComplexFloat can't be cast to"):
            torch.div(half, wide, out=torch.empty(3, device="cuda"))
        assert half.angle().dtype == torch.float16
        assert wide.angle().dtype == torch.float32


def test_sums_widen_and_narrow_complex_numbers_by_their_type():
    with simulate("1GiB"):
        wide = torch.randn(5, 6, dtype=torch.complex64, device="cuda")
        assert wide.sum(dtype=torch.complex32).dtype == torch.complex32
        assert wide.to(torch.complex32).sum(0, dtype=torch.complex64).dtype == torch.complex64
