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


def on_its_device(x):
    """Twice the squares of elements with an odd position, by way of the CPU."""
    assert x.is_cuda
    assert not x.cpu().is_cuda
    weights = torch.arange(2, device=x.device) + torch.zeros_like(x)
    return ((x.cpu() * 2).cuda() * weights * x).sum()


@pytest.mark.parametrize(
    ("transformed", "expected"),
    [
        (torch.vmap(on_its_device), [8.0, 2.0]),
        (torch.vmap(torch.func.grad(on_its_device)), [[0.0, 8.0], [0.0, -4.0]]),
        (lambda x: torch.func.grad(on_its_device)(x[0]), [0.0, 8.0]),
        (lambda x: torch.func.jvp(on_its_device, (x[0],), (x[1],))[1], -8.0),
        (lambda x: torch.func.hessian(on_its_device)(x[0]), [[0.0, 0.0], [0.0, 4.0]]),
        (lambda x: torch.func.functionalize(on_its_device)(x[1]), 2.0),
    ],
    ids=["vmap", "vmap of grad", "grad", "jvp", "hessian", "functionalize"],
)
def test_tensors_inside_a_transform_are_on_the_gpu(transformed, expected):
    result = transformed(on_gpu([1.0, 2.0], [3.0, -1.0]))
    assert (result.tolist(), result.is_cuda) == (expected, True)


def test_a_missing_tangent_is_made_on_the_gpu():
    """PyTorch makes zeros inside the op, whose arguments wrap two transforms."""
    weight = on_gpu([1.0, 2.0], [3.0, 4.0])

    def product(x):
        return torch.func.jvp(lambda weight: weight @ x, (weight,), (weight * 2,))[1]

    result = torch.vmap(product)(on_gpu([1.0, 0.0], [0.0, 1.0]))
    assert (result.tolist(), result.is_cuda) == ([[2.0, 6.0], [4.0, 8.0]], True)


def test_custom_functions_inside_transforms():
    class Exponential(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x.exp()

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(output)

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.saved_tensors[0]

    x = on_gpu(0.0, 0.5).requires_grad_()
    slopes = torch.vmap(torch.func.grad(Exponential.apply))(x)
    assert (slopes.tolist(), slopes.is_cuda) == (x.exp().tolist(), True)
    slopes.sum().backward()
    assert (x.grad.tolist(), x.grad.is_cuda) == (x.exp().tolist(), True)
