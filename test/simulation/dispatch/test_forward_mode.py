"""Forward-mode differentiation and ``torch.func`` on a simulated GPU."""

from __future__ import annotations

import pytest
import torch
import torch.autograd.forward_ad as forward

from pytorch_memlab import simulate


@pytest.fixture(autouse=True)
def simulated():
    with simulate("24GiB"):
        yield


def on_gpu(*values):
    return torch.tensor(values, device="cuda")


def both(dual):
    """Primal and tangent of a tensor, with their devices."""
    return [(one.tolist(), one.device.type) for one in forward.unpack_dual(dual)]


def test_a_tangent_is_where_its_tensor_is():
    with forward.dual_level():
        x = forward.make_dual(on_gpu(1.0, 2.0), on_gpu(1.0, -1.0))
        before = torch.cuda.memory_allocated()
        doubled = x * 2
        assert torch.cuda.memory_allocated() - before == 2 * 512
        assert both(doubled) == [([2.0, 4.0], "cuda"), ([2.0, -2.0], "cuda")]
        assert both(x * x) == [([1.0, 4.0], "cuda"), ([2.0, -4.0], "cuda")]
        copied = torch.zeros(2, device="cuda").copy_(x)
        assert both(copied) == [([1.0, 2.0], "cuda"), ([1.0, -1.0], "cuda")]


def test_a_tangent_moves_with_its_tensor():
    with forward.dual_level():
        x = forward.make_dual(torch.tensor([1.0, 2.0]), torch.tensor([1.0, -1.0]))
        moved = x.requires_grad_().cuda()
        assert both(moved) == [([1.0, 2.0], "cuda"), ([1.0, -1.0], "cuda")]
        assert both((moved * 3).cpu()) == [([3.0, 6.0], "cpu"), ([3.0, -3.0], "cpu")]


def test_derivatives_of_functions():
    def cubes(a):
        return (a**3 * 2).sum()

    x = on_gpu(1.0, 2.0)
    assert torch.func.jvp(cubes, (x,), (x,))[1].item() == 6 * (1 + 8)
    for second in (torch.func.hessian(cubes)(x), torch.func.jacfwd(torch.func.jacfwd(cubes))(x)):
        assert (second.tolist(), second.is_cuda) == ([[12.0, 0.0], [0.0, 24.0]], True)
