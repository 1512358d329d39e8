"""Categories of blocks that die before anybody asks, in programs that train in unusual ways."""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from pytorch_memlab import LineProfiler
from pytorch_memlab.simulation import simulate

MIB = 2**20
KERNELS = ("workspaces", "temporaries")


def categories(work: Callable[[], object]) -> dict[str, int]:
    """MiB that some work allocates by category, less those of workspaces and temporaries."""
    with simulate("24GiB", compute=False), LineProfiler(history=True) as profiler:
        _called(work)
        events = profiler.history().of_device(0).events
    sizes = Counter[str]()
    for event in events:
        if event.action == "alloc" and str(event.category) not in KERNELS:
            sizes[str(event.category)] += event.size
    return {name: size // MIB for name, size in sizes.items() if size >= MIB}


def _called(work: Callable[[], object]) -> None:
    work()


def linear() -> nn.Linear:
    return nn.Linear(512, 512, bias=False, device="cuda")


def samples() -> torch.Tensor:
    return torch.empty(512, 512, device="cuda")


class Keeps(torch.autograd.Function):
    """Keeps two tensors that its forward pass makes without gradients."""

    @staticmethod
    def forward(ctx, x):
        doubled, half = x * 2, x / 2
        ctx.save_for_backward(doubled, half)
        return doubled * half

    @staticmethod
    def backward(ctx, gradient):
        doubled, half = ctx.saved_tensors
        return gradient * doubled * half


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = linear()

    def forward(self, x):
        return Keeps.apply(self.inner(x))


@pytest.mark.knows_simulation("PyTorch's history tells neither who freed a block nor its module")
def test_what_a_custom_function_keeps_is_saved_for_backward():
    def work():
        layer, x = Layer(), samples()
        layer(x).sum().backward()
        del x

    # The result of the function is no tensor that backward needs.
    assert categories(work) == {
        "parameters": 1,
        "inputs and other tensors": 2,
        "activations saved for backward": 2,
        "gradients": 1,
    }


@pytest.mark.knows_simulation("PyTorch's history tells neither who freed a block nor its module")
def test_what_reentrant_checkpoints_hand_on_is_saved_for_backward():
    def work():
        x = samples().requires_grad_()
        layers = [linear(), linear(), linear()]
        for layer in layers:
            x = checkpoint(layer, x, use_reentrant=True)
        x.sum().backward()

    assert categories(work) == {
        "parameters": 3,
        "inputs and other tensors": 1,
        "activations saved for backward": 5,
        "gradients": 4,
    }


@pytest.mark.knows_simulation("PyTorch's history tells neither who freed a block nor its module")
def test_gradients_that_die_with_their_parameters_are_gradients():
    def work():
        layer = linear()
        layer(samples()).sum().backward()

    found = categories(work)
    assert found["gradients"] == 1
    assert "unknown" not in found


@pytest.mark.knows_simulation("PyTorch's history tells neither who freed a block nor its module")
def test_gradients_that_grad_returns_are_other_tensors():
    def work():
        layer, x = linear(), samples()
        returned = torch.autograd.grad(layer(x).sum(), layer.weight)
        del returned, x

    assert categories(work) == {
        "parameters": 1,
        "inputs and other tensors": 2,
        "activations saved for backward": 1,
    }


@pytest.mark.knows_simulation("PyTorch's history tells neither who freed a block nor its module")
def test_gradients_that_grad_returns_through_a_custom_function_are_other_tensors():
    def work():
        x = samples().requires_grad_()
        returned = torch.autograd.grad(Keeps.apply(x).sum(), x)
        del returned, x

    assert categories(work) == {
        "inputs and other tensors": 2,
        "activations saved for backward": 2,
    }


class KeepsLists(torch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["former"] = [samples(), (samples(),)]


def test_what_only_an_optimizer_has_is_known_wherever_it_is_kept():
    def work():
        weight = samples().requires_grad_()
        optimizer = KeepsLists([weight], lr=0.1)
        weight.grad = samples()
        optimizer.step()

    assert categories(work) == {"parameters": 1, "gradients": 1, "optimizer state": 2}


def test_the_gradient_after_a_sparse_one_is_known():
    def work():
        weights = [samples().requires_grad_() for _ in range(2)]
        optimizer = torch.optim.SGD(weights, lr=0.1)
        weights[0].grad = torch.sparse_coo_tensor(
            torch.arange(256, device="cuda")[None], samples()[:256], (512, 512)
        )
        weights[1].grad = samples()
        optimizer.step()

    assert categories(work) == {"parameters": 2, "gradients": 2}


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))]
)
def test_a_copy_of_a_module_has_parameters(copied):
    def work():
        average = copied(nn.Sequential(linear(), linear()))
        del average

    assert categories(work)["parameters"] == 4
