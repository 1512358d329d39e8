"""Softmax: temporaries, half precision within the kernel, and values."""

from __future__ import annotations

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from support.dry_run_comparison import events_of
from support.op_memory import aten, events, randn, temporaries

from pytorch_memlab import simulate
from pytorch_memlab.simulation.machine.torch_release import RELEASE


@pytest.mark.parametrize(
    ("gradient", "output", "copies"),
    [
        (lambda: randn(8, 32), lambda: randn(8, 32), 1),
        (lambda: randn(8, 1).expand(8, 32), lambda: randn(8, 32), 1),
        (lambda: randn(32, 8).t(), lambda: randn(32, 8).t(), 3),
        (lambda: randn(32, 8).t(), lambda: randn(8, 32), 2),
    ],
)
def test_the_gradient_of_softmax_is_made_of_a_product(gradient, output, copies):
    def softmax(g, o):
        return aten._softmax_backward_data(g, o, 1, torch.float32)

    assert events(softmax, gradient, output)[1:] == temporaries(*[1024] * copies)


def test_softmax_takes_copies_of_what_is_not_contiguous():
    transposed = [lambda: randn(32, 8).t()]
    plain = [lambda: randn(8, 32)]
    for softmax in (torch.softmax, torch.log_softmax):
        assert events(lambda x, f=softmax: f(x, 1), *plain) == [1024]
        assert events(lambda x, f=softmax: f(x, 1), *transposed) == [1024, 1024, -1024]
    log = lambda g: aten._log_softmax_backward_data(g, g, 1, torch.float32)  # noqa: E731
    assert events(log, *plain) == [1024]
    assert events(log, *transposed)[1:] == temporaries(1024, 1024)


@pytest.mark.skipif(RELEASE < (2, 13), reason="older releases were not read")
@computed_or_dry
def test_a_softmax_that_knows_empty_rows_finds_them(compute):
    found = events(lambda x: aten._safe_softmax(x, -1), lambda: randn(8, 32), compute=compute)
    assert found == [1024, 256, 8, 4, -4, -8, -256]


HALF, BFLOAT, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64
SOFTMAX = {"softmax": torch.softmax, "log_softmax": torch.log_softmax}


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


def softmaxes():
    for softmax in SOFTMAX.values():
        tensor = torch.randn(50, 300, device="cuda", dtype=HALF, requires_grad=True)
        softmax(tensor, -1, dtype=SINGLE).pow(2).sum().backward()
        with torch.inference_mode(), torch.autocast("cuda"):
            softmax(tensor.detach(), -1)


def test_the_allocator_sees_the_same_without_arithmetic():
    computed = events_of(softmaxes, compute=True)
    assert len(computed) > 15
    assert events_of(softmaxes, compute=False) == computed
