"""Runs of compiled graphs tell how many operations they do, and which of them twice."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import CodeType

import pytest
import torch
from torch import nn
from torch._functorch import config

from pytorch_memlab import simulate
from pytorch_memlab._common.frames.compiled_code import (
    Frames,
    GraphFlops,
    RunFollower,
    compiled_code,
)
from pytorch_memlab.simulation.machine.torch_release import RELEASE

pytestmark = pytest.mark.skipif(RELEASE < (2, 9), reason="compiled from torch 2.9 on")

UP, DOWN = 2 * 16 * 64 * 128, 2 * 16 * 128 * 32
"""Operations of the two products of a batch of 16."""
FORWARD = UP + DOWN
BACKWARD = UP + 2 * DOWN  # the input has no gradient


class Runs:
    """The operations of each run, in order."""

    def __init__(self) -> None:
        self.flops: list[tuple[bool, GraphFlops]] = []

    def replaced(self, code: CodeType, generated: CodeType, is_start: bool) -> None: ...

    def compiling(self) -> AbstractContextManager[None]:
        return nullcontext()

    def begin(
        self, _lines: frozenset[Frames], is_hit: bool, flops: Callable[[], GraphFlops]
    ) -> RunFollower:
        self.flops.append((is_hit, flops()))
        return self

    def at(self, _frames: Frames) -> None: ...

    def end(self) -> None: ...


def runs_of_steps(budget: float, *, batches: tuple[int, ...] = (16,), dynamic: bool = False):
    runs = Runs()
    with simulate("h100", compute=False), config.patch(activation_memory_budget=budget):
        module = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 32)).cuda()
        step = torch.compile(module, dynamic=dynamic)
        compiled_code.follow(runs)
        try:
            for batch in batches:
                step(torch.zeros(batch, 64, device="cuda")).sum().backward()
        finally:
            compiled_code.followers.remove(runs)
    return runs.flops


def test_a_program_that_saves_its_activations_does_no_product_twice():
    forward, backward = (True, GraphFlops(FORWARD, 0)), (False, GraphFlops(BACKWARD, 0))
    assert runs_of_steps(1) == [forward, backward]


@pytest.mark.parametrize("dynamic", [False, True])
def test_products_of_the_forward_pass_that_the_backward_pass_does_again(dynamic):
    forward, backward = (True, GraphFlops(FORWARD, 0)), (False, GraphFlops(BACKWARD + UP, UP))
    assert runs_of_steps(0, dynamic=dynamic) == [forward, backward]
    # Graphs that were kept tell the same.
    assert runs_of_steps(0, dynamic=dynamic) == [forward, backward]


def test_operations_are_those_of_each_run():
    flops = runs_of_steps(0, batches=(16, 16))
    assert flops == 2 * [(True, GraphFlops(FORWARD)), (False, GraphFlops(BACKWARD + UP, UP))]
