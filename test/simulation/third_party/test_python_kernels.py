"""Ops of libraries whose kernels are Python functions: every op in them is accounted for."""

import pytest
import torch
from support.computed_or_dry import computed_or_dry

from pytorch_memlab import simulate

if not hasattr(torch.library, "custom_op"):
    pytest.skip("this torch has no custom_op", allow_module_level=True)


@torch.library.custom_op("python_kernels::scaled", mutates_args=())
def scaled(x: torch.Tensor) -> torch.Tensor:
    buffer = torch.empty(1000, device=x.device)
    assert torch.zeros(2).device.type == "cpu"
    assert x.new_zeros(2).device == buffer.device == x.device
    return x * 2


@torch.library.custom_op("python_kernels::fill", mutates_args={"x"})
def fill(x: torch.Tensor) -> None:
    x.copy_(torch.full((2000,), 3.0, device=x.device)[: len(x)])


scaled.register_autograd(lambda ctx, gradient: gradient * 2, setup_context=lambda **_given: None)


@computed_or_dry
@pytest.mark.parametrize("inference", [True, False])
def test_what_a_kernel_allocates_is_counted(compute, inference):
    with simulate("24GiB", compute=compute, strict=True), torch.inference_mode(inference):
        x = torch.ones(1024, device="cuda")
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        y = scaled(x)
        assert torch.cuda.memory_allocated() - before == 4096
        assert torch.cuda.max_memory_allocated() - before == 4096 + 4096
        assert y.device == x.device
        torch.cuda.reset_peak_memory_stats()
        fill(y)
        assert torch.cuda.max_memory_allocated() - before == 4096 + 8192
        assert torch.cuda.memory_allocated() - before == 4096


def test_its_values_and_gradients_are_right():
    with simulate("24GiB"):
        x = torch.ones(3, device="cuda", requires_grad=True)
        scaled(x).sum().backward()
        assert (x.grad.tolist(), x.grad.is_cuda) == ([2.0] * 3, True)
        with torch.no_grad():
            fill(x)
        assert x.tolist() == [3.0] * 3
        assert scaled(torch.ones(3)).device.type == "cpu"
