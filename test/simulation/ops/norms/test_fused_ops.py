"""Ops that CUDA runs whole where a CPU runs several: softmax of half precision, RMS norm."""

from __future__ import annotations

import pytest
import torch
from support.dry_run_comparison import events_of
from torch import nn
from torch.nn import functional as F

from pytorch_memlab import simulate

HALF, BFLOAT, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64
SOFTMAX = {"softmax": torch.softmax, "log_softmax": torch.log_softmax}
HAS_FUSED = hasattr(torch.ops.aten, "_fused_rms_norm_backward")
needs_fused = pytest.mark.skipif(not HAS_FUSED, reason="this torch has no fused RMS norm")


@pytest.mark.parametrize("name", SOFTMAX)
@pytest.mark.parametrize(("dtype", "copies"), [(HALF, 0), (BFLOAT, 1)])
def test_half_precision_is_converted_within_the_kernel(name, dtype, copies):
    with simulate("1GiB"):
        tensor = torch.randn(1024, 1024, device="cuda", dtype=dtype)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = SOFTMAX[name](tensor, -1, dtype=SINGLE)
        peak = torch.cuda.max_memory_allocated() - before
        assert peak == (1 + copies) * result.nbytes


@pytest.mark.parametrize("name", SOFTMAX)
def test_under_autocast_too(name):
    with simulate("1GiB"), torch.autocast("cuda"):
        tensor = torch.randn(1024, 1024, device="cuda", dtype=HALF)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = SOFTMAX[name](tensor, -1)
        assert result.dtype == SINGLE
        assert torch.cuda.max_memory_allocated() - before == result.nbytes


@pytest.mark.parametrize("name", SOFTMAX)
def test_softmax_computes_what_a_cpu_computes(name):
    torch.manual_seed(0)
    tensor = torch.randn(4, 9).half().requires_grad_()
    SOFTMAX[name](tensor, -1, dtype=SINGLE).sin().sum().backward()
    with simulate("1GiB"):
        leaf = tensor.detach().cuda().requires_grad_()
        result = SOFTMAX[name](leaf, -1, dtype=SINGLE)
        result.sin().sum().backward()
        expected = SOFTMAX[name](tensor.detach(), -1, dtype=SINGLE)
        torch.testing.assert_close(result.detach().cpu(), expected)
        torch.testing.assert_close(leaf.grad.cpu(), tensor.grad)


@needs_fused
def test_an_rms_norm_keeps_its_input_and_a_number_for_each_row():
    with simulate("1GiB"):
        norm = nn.RMSNorm(512).cuda()
        tensor = torch.randn(1024, 512, device="cuda", requires_grad=True)
        before = torch.cuda.memory_allocated()
        result = norm(tensor)
        assert type(result.grad_fn).__name__ == "FusedRmsNormBackward0"
        assert torch.cuda.memory_allocated() - before == result.nbytes + 1024 * 4


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("where", ["cuda", "cpu"])
def test_an_rms_norm_computes_what_a_cpu_computes(weighted, where):
    torch.manual_seed(0)
    tensor = torch.randn(3, 4, 6, dtype=DOUBLE, requires_grad=True)
    weight = torch.randn(4, 6, dtype=DOUBLE, requires_grad=True) if weighted else None
    result = F.rms_norm(tensor, (4, 6), weight)
    result.sin().sum().backward()
    with simulate("1GiB"):
        leaf = tensor.detach().to(where, copy=True).requires_grad_()
        of_weight = weight.detach().to(where, copy=True).requires_grad_() if weighted else None
        found = F.rms_norm(leaf, (4, 6), of_weight)
        found.sin().sum().backward()
        torch.testing.assert_close(found.detach().cpu(), result.detach())
        torch.testing.assert_close(leaf.grad.cpu(), tensor.grad)
        if weighted:
            torch.testing.assert_close(of_weight.grad.cpu(), weight.grad)


def softmaxes():
    for softmax in SOFTMAX.values():
        tensor = torch.randn(50, 300, device="cuda", dtype=HALF, requires_grad=True)
        softmax(tensor, -1, dtype=SINGLE).pow(2).sum().backward()
        with torch.inference_mode(), torch.autocast("cuda"):
            softmax(tensor.detach(), -1)


def rms_norms():
    for dtype in (SINGLE, BFLOAT):
        norm = nn.RMSNorm(300).cuda().to(dtype)
        tensor = torch.randn(50, 300, device="cuda", dtype=dtype, requires_grad=True)
        norm(tensor).float().pow(2).sum().backward()
        with torch.inference_mode():
            norm(tensor.detach())


@pytest.mark.parametrize("program", [softmaxes, rms_norms])
def test_the_allocator_sees_the_same_without_arithmetic(program):
    computed = events_of(program, compute=True)
    assert len(computed) > 15
    assert events_of(program, compute=False) == computed


def test_the_ops_are_pytorchs_own_again_afterwards():
    with simulate("1GiB"):
        F.rms_norm(torch.randn(2, 3, device="cuda"), (3,))
    leaf = torch.randn(2, 3, requires_grad=True)
    assert type(F.rms_norm(leaf, (3,)).grad_fn).__name__ != "FusedRmsNormBackward0"


def test_optimizers_choose_as_on_cuda():
    with simulate("1GiB"):
        layer = nn.Linear(256, 256).cuda()
        layer.weight.grad, layer.bias.grad = (torch.ones_like(one) for one in layer.parameters())
        optimizer = torch.optim.Adam(layer.parameters())
        optimizer.step()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        optimizer.step()
        rooted = 256 * 256 * 4 + 256 * 4
        assert torch.cuda.max_memory_allocated() - before == rooted
        fused = torch.optim.Adam(layer.parameters(), fused=True)
        fused.step()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        fused.step()
        assert torch.cuda.max_memory_allocated() == before
