"""Programs with a default device compile forward and backward passes, as others do."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch

from benchmarks.wrapper_text import recorded_graphs
from pytorch_memlab import simulate
from pytorch_memlab.simulation.machine.torch_release import RELEASE

pytestmark = pytest.mark.skipif(RELEASE < (2, 9), reason="compiled from torch 2.9 on")


def step() -> list[torch.Tensor]:
    parameter = torch.nn.Parameter(torch.arange(4.0).view(2, 2).cuda())
    compiled = torch.compile(lambda x, y: x * y.sin())
    compiled(torch.ones(2, 2, device="cuda") * 3, parameter).sum().backward()
    assert parameter.grad is not None
    return [parameter.grad.cpu()]


def within_a_context() -> list[torch.Tensor]:
    with torch.device("cuda"):
        return step()


def after_a_default() -> list[torch.Tensor]:
    torch.set_default_device("cuda")
    try:
        return step()
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize("program", [within_a_context, after_a_default])
def test_the_backward_pass_is_compiled_too(program: Callable[[], list[torch.Tensor]]) -> None:
    with warnings.catch_warnings(), simulate("h100"), recorded_graphs() as graphs:
        warnings.filterwarnings("error", message="torch.compile runs eagerly")
        (gradient,) = program()
    assert [graph.differences() for graph in graphs] == [[], []]
    torch.testing.assert_close(gradient, 3 * torch.arange(4.0).view(2, 2).cos())
