"""Log sigmoid keeps its input alone on CUDA."""

from __future__ import annotations

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from support.op_memory import aten
from torch.nn import functional as F

from pytorch_memlab import simulate

HALF, BFLOAT, SINGLE = torch.float16, torch.bfloat16, torch.float32


@computed_or_dry
def test_a_log_sigmoid_keeps_its_input_alone(compute):
    with simulate("1GiB", compute=compute):
        leaf = torch.randn(128, 512, device="cuda", requires_grad=True)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = F.logsigmoid(leaf)
        assert torch.cuda.max_memory_allocated() - before == result.nbytes
        buffer = aten.log_sigmoid_forward(leaf)[1]
        assert (tuple(buffer.shape), buffer.dtype, buffer.is_cuda) == ((0,), SINGLE, True)
        result.sum().backward()
        assert leaf.grad.shape == leaf.shape


@pytest.mark.parametrize("dtype", [torch.float64, BFLOAT])
def test_a_log_sigmoid_computes_what_a_cpu_computes(dtype):
    torch.manual_seed(0)
    tensor = (4 * torch.randn(5, 7)).to(dtype)

    def run(leaf):
        F.logsigmoid(leaf).sin().sum().backward()
        return F.logsigmoid(leaf.detach()).cpu(), leaf.grad.cpu()

    expected = run(tensor.clone().requires_grad_())
    with simulate("1GiB"):
        torch.testing.assert_close(run(tensor.cuda().requires_grad_()), expected)


@computed_or_dry
def test_a_log_sigmoid_has_the_strides_of_its_input(compute):
    with simulate("1GiB", compute=compute):
        columns = torch.ones(64, 200, device="cuda").t()
        assert F.logsigmoid(columns).stride() == (1, 200)
