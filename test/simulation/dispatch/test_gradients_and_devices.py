"""Tensors' devices: what PyTorch makes of data, on the meta device, for a tensor's gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pytorch_memlab import simulate

WORDS = "Please ensure that the gradient and the tensor are on the same device"


@pytest.fixture(params=[True, False], ids=["computed", "shapes"], autouse=True)
def simulated(request):
    with simulate("24GiB", count=2, compute=request.param):
        yield


def test_what_is_made_on_the_meta_device_takes_nothing_of_the_gpu():
    x = torch.ones(1000, device="cuda")
    before = torch.cuda.memory_allocated()
    made = [
        x.to("meta"),
        torch.empty_like(x, device="meta"),
        x.new_zeros(7, device="meta"),
        torch.randn(3, 3, device="meta"),
        torch.nn.Linear(3, 3, device="cuda").to("meta").weight,
    ]
    assert {str(tensor.device) for tensor in made} == {"meta"}
    assert torch.cuda.memory_allocated() == before


def test_new_of_data_is_on_the_gpu():
    x = torch.ones(3, device="cuda:1")
    before = torch.cuda.memory_allocated(1)
    for data, expected in (
        ([0, 1, 2], [0.0, 1.0, 2.0]),
        (([1, 2], [3, 4]), [[1.0, 2.0], [3.0, 4.0]]),
        (np.arange(2), [0.0, 1.0]),
    ):
        made = x.new(data)
        assert (str(made.device), made.dtype, made.tolist()) == ("cuda:1", x.dtype, expected)
        assert torch.cuda.memory_allocated(1) == before + 512
        del made
    assert x.new(2, 3).shape == x.new(torch.Size([2, 3])).shape == (2, 3)
    assert torch.ones(2).new([1]).device.type == "cpu"


@pytest.mark.parametrize(
    ("device", "other", "words"),
    [
        ("cuda", "cpu", "a gradient with device type 'cpu' to a tensor with device type 'cuda'. "),
        ("cpu", "cuda", "a gradient with device type 'cuda' to a tensor with device type 'cpu'. "),
        (
            "cuda:0",
            "cuda:1",
            (
                "a gradient located on device with index '1' "
                "to a tensor located on device with index '0'. "
            ),
        ),
    ],
)
def test_a_gradient_of_another_device_is_refused(device, other, words):
    tensor = torch.ones(2, device=device, requires_grad=True)
    with pytest.raises(RuntimeError) as error:
        tensor.grad = torch.ones(2, device=other)
    assert str(error.value) == f"attempting to assign {words}{WORDS}"
    assert tensor.grad is None
    tensor.grad = kept = torch.ones(2, device=device)
    assert tensor.grad is kept
    tensor.grad = None
    assert tensor.grad is None
    tensor.grad = kept
    del tensor.grad
    assert tensor.grad is None
    with pytest.raises(RuntimeError, match="size"):
        tensor.grad = torch.ones(3, device=device)


class _Both(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * 2, y * 3

    @staticmethod
    def backward(ctx, gradient, of_the_unused_output):
        x, y = ctx.saved_tensors
        return gradient * 2 * x, of_the_unused_output * 3 * y


def _custom(x):
    return _Both.apply(x, x)[0]


def _masked(x):
    y = x * 1
    y[torch.ones(3, dtype=torch.bool, device=x.device)] = 0
    return y


@pytest.mark.parametrize("part", [_custom, _masked])
def test_zeros_that_a_node_makes_are_where_its_gradients_are(part):
    on_gpu = torch.ones(3, device="cuda:1", requires_grad=True)
    on_cpu = torch.ones(3, requires_grad=True)
    ways = {
        "GPU": lambda: part(on_gpu),
        "CPU": lambda: part(on_cpu),
        "CPU to GPU": lambda: part(on_cpu).cuda(1) * 2,
        "GPU to CPU": lambda: part(on_gpu).cpu() * 2,
        "both": lambda: part(part(on_cpu).cuda(1)),
    }
    for name, forward in ways.items():
        on_gpu.grad = on_cpu.grad = None
        forward().sum().backward()
        made = [one.grad.device for one in (on_gpu, on_cpu) if one.grad is not None]
        assert [str(device) for device in made] == [
            "cuda:1" if name.startswith("GPU") else "cpu"
        ], name


@pytest.mark.parametrize(("source", "target"), [("cpu", "cuda:1"), ("cuda:1", "cpu")])
def test_batches_of_gradients_go_back_to_where_a_copy_came_from(source, target):
    x = torch.arange(3.0, device=source, requires_grad=True)
    y = x.to(target) * 2
    gradients = torch.eye(3, device=target)
    (batch,) = torch.autograd.grad(y, x, gradients, is_grads_batched=True)
    assert (str(batch.device), batch.tolist()) == (source, (2 * torch.eye(3)).tolist())


class _ElsewhereBack(torch.autograd.Function):
    """A function whose backward pass returns the gradient of its tensor from another device."""

    @staticmethod
    def forward(ctx, number, _unused, tensor, device):
        ctx.device = device
        return tensor * number

    @staticmethod
    def backward(ctx, gradient):
        return None, None, gradient.to(ctx.device), None


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_a_gradient_for_a_backward_pass_is_where_its_tensor_is(device):
    doubled = torch.ones(2, device="cuda:1", requires_grad=True) * 2
    other = torch.ones(2, device=device)
    words = rf"^invalid gradient at index 0 - expected device cuda:1 but got {device}$"
    for run in (
        lambda: doubled.backward(other, retain_graph=True),
        lambda: torch.autograd.backward([doubled], [other], retain_graph=True),
        lambda: torch.autograd.grad(doubled, doubled, other, retain_graph=True),
    ):
        with pytest.raises(RuntimeError, match=words):
            run()
    [gradient] = torch.autograd.grad(doubled.sum(), doubled, other[0])
    assert gradient.device == doubled.device


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_a_custom_function_returns_its_gradients_where_its_inputs_were(device):
    tensor = torch.ones(2, device="cuda:1", requires_grad=True)
    _ElsewhereBack.apply(2, torch.ones(1), tensor, "cuda:1").sum().backward()
    assert tensor.grad.tolist() == [1.0, 1.0]
    words = (
        r"^Function _ElsewhereBackBackward returned an invalid gradient at index 1"
        rf" - expected device cuda:1 but got {device}$"
    )
    with pytest.raises(RuntimeError, match=words):
        _ElsewhereBack.apply(2, torch.ones(1), tensor, device).sum().backward()


def test_custom_functions_run_where_the_call_of_theirs_is_one_of_c(monkeypatch):
    """So it is from torch 2.14.1 on, without the Python around it."""
    in_c = vars(torch._C._FunctionBase)["apply"]
    monkeypatch.setattr(torch.autograd.Function, "apply", in_c)

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    with simulate("1GiB"):
        x = torch.ones(3, device="cuda", requires_grad=True)
        Double.apply(x).sum().backward()
        assert x.grad.tolist() == [2.0, 2.0, 2.0]
        assert x.grad.device.type == "cuda"
    assert vars(torch.autograd.Function)["apply"] is in_c
