"""RMS norm is one kernel on CUDA: what it keeps, its temporaries, and its values."""

from __future__ import annotations

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from support.dry_run_comparison import events_of
from support.op_memory import aten, events, randn
from torch import nn
from torch.nn import functional as F

from pytorch_memlab import simulate

HALF, BFLOAT, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64
HAS_FUSED = hasattr(torch.ops.aten, "_fused_rms_norm_backward")


needs_fused = pytest.mark.skipif(not HAS_FUSED, reason="this torch has no fused RMS norm")


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


def rms_norms():
    for dtype in (SINGLE, BFLOAT):
        norm = nn.RMSNorm(300).cuda().to(dtype)
        tensor = torch.randn(50, 300, device="cuda", dtype=dtype, requires_grad=True)
        norm(tensor).float().pow(2).sum().backward()
        with torch.inference_mode():
            norm(tensor.detach())


def test_the_allocator_sees_the_same_without_arithmetic():
    computed = events_of(rms_norms, compute=True)
    assert len(computed) > 15
    assert events_of(rms_norms, compute=False) == computed


def test_the_ops_are_pytorchs_own_again_afterwards():
    with simulate("1GiB"):
        F.rms_norm(torch.randn(2, 3, device="cuda"), (3,))
    leaf = torch.randn(2, 3, requires_grad=True)
    assert type(F.rms_norm(leaf, (3,)).grad_fn).__name__ != "FusedRmsNormBackward0"


HALF, BFLOAT, SINGLE = torch.float16, torch.bfloat16, torch.float32


@pytest.mark.skipif(
    not hasattr(aten, "_fused_rms_norm_backward"), reason="this torch has no fused RMS norm"
)
@computed_or_dry
@pytest.mark.parametrize("dtype", [SINGLE, BFLOAT])
def test_an_rms_norm_is_one_kernel_forward_and_backward(dtype, compute):
    whole, row, width = 300 * 512 * dtype.itemsize, 512 * dtype.itemsize, 4
    make = [lambda: randn(300, 512, dtype=dtype), lambda: randn(512, dtype=dtype)]
    forward = events(lambda x, w: F.rms_norm(x, (512,), w), *make, compute=compute)
    assert forward == [whole, 300 * width, -300 * width]
    transposed = [lambda: randn(512, 300, dtype=dtype).t(), make[1]]
    copied = events(lambda x, w: F.rms_norm(x, (512,), w), *transposed, compute=compute)
    assert copied == [whole, *forward[:2], -whole, -300 * width]

    def gradient(g, x, w, inverse):
        return aten._fused_rms_norm_backward(g, x, [512], inverse, w, [True, True])

    given = [make[0], make[0], make[1], lambda: randn(300, 1)]
    assert events(gradient, *given, compute=compute) == [whole, row]
    expanded = [lambda: randn(1, 1, dtype=dtype).expand(300, 512), *given[1:]]
    assert events(gradient, *expanded, compute=compute) == [whole, row, whole, -whole]
