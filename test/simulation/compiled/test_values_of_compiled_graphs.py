"""Ops of a compiled graph that the CPU cannot run on its tensors have the values of eager code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pytorch_memlab import simulate
from pytorch_memlab.simulation.compiled import values
from pytorch_memlab.simulation.machine.torch_release import RELEASE

pytestmark = pytest.mark.skipif(RELEASE < (2, 9), reason="compiled from torch 2.9 on")

Tensors = list[torch.Tensor]


def pooling(memory_format: torch.memory_format) -> Tensors:
    """Inductor saves channels-last tensors for the backward pass, whose graph views them."""
    module = nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1)),
        *(nn.Conv2d(8, 72, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(72, 4)),
    )  # layouts are changed from more than 64 channels on
    module = module.cuda().to(memory_format=memory_format)
    x = torch.randn(2, 3, 18, 18, generator=torch.Generator().manual_seed(1)).cuda()
    with torch.autocast("cuda", torch.bfloat16):
        loss = torch.compile(module)(x.to(memory_format=memory_format)).square().mean()
    loss.backward()
    return [loss, *(one.grad for one in module.parameters() if one.grad is not None)]


class SinesInMemory(torch.autograd.Function):
    """Reads what it keeps as the memory that it was."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        [x] = ctx.saved_tensors
        return gradient * torch.as_strided(x, x.shape, x.stride()).sin()


def memory_of_tensors(memory_format: torch.memory_format) -> Tensors:
    first, second = nn.Conv2d(3, 72, 3).cuda(), nn.Conv2d(72, 72, 3).cuda()

    @torch.compile
    def step(x: torch.Tensor) -> torch.Tensor:
        y = SinesInMemory.apply(first(x).relu())
        return second(torch.as_strided(y, (2, 72, 5, 5), y.stride())).square().mean()

    x = torch.randn(2, 3, 9, 9, generator=torch.Generator().manual_seed(1))
    loss = step(x.to("cuda", memory_format=memory_format))
    loss.backward()
    return [loss, *(one.grad for one in first.parameters() if one.grad is not None)]


def lazy_clones(_memory_format: torch.memory_format) -> Tensors:
    """Memory that two tensors share until one is written to."""

    @torch.compile(fullgraph=True)
    def step(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        copy, other = torch.ops.aten._lazy_clone(x), torch.ops.aten._lazy_clone(x)
        copy.add_(1)
        x.mul_(2)
        return copy, other

    x = torch.arange(300.0).cuda()
    return [*step(x), x]


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("program", [pooling, memory_of_tensors, lazy_clones])
def test_values_are_those_of_eager_code_in_the_memory_of_a_dry_run(
    program: Callable[[torch.memory_format], Tensors], memory_format: torch.memory_format
) -> None:
    peaks = []
    for compute in (True, False):
        with simulate("h100", compute=compute):
            torch.manual_seed(0)
            results = [tensor.detach().cpu() for tensor in program(memory_format)]
            peaks.append((torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()))
        if compute:
            computed = results
    assert peaks[0] == peaks[1]
    with simulate("h100"), pytest.MonkeyPatch.context() as patches:
        patches.setattr(torch, "compile", lambda function=None, **_: function or (lambda f: f))
        torch.manual_seed(0)
        expected = [tensor.detach().cpu() for tensor in program(memory_format)]
    tolerance = 2e-2 if program is pooling else 1e-5
    torch.testing.assert_close(computed, expected, rtol=tolerance, atol=tolerance)


def test_an_op_that_runs_for_its_memory_alone_changes_no_values() -> None:
    """A graph that adds up integers has added them when its wrapper calls the op."""
    with simulate("h100") as machine:
        values.install(machine)
        counts = torch.zeros(5, dtype=torch.int64, device="cuda")
        index = torch.tensor([1, 1, 3], device="cuda")
        before = torch.cuda.memory_allocated()
        with machine.thread.without_arithmetic():
            counts.index_put_((index,), torch.ones_like(index), accumulate=True)
            made = counts.float()
        assert counts.tolist() == [0, 0, 0, 0, 0]
        assert (made.shape, torch.cuda.memory_allocated() - before) == ((5,), 512)
        counts.index_put_((index,), torch.ones_like(index), accumulate=True)
        assert counts.tolist() == [0, 2, 0, 1, 0]
