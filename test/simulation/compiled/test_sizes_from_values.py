"""Compiled graphs whose sizes depend on values take the sizes that the values give."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch._dynamo import config

from pytorch_memlab import simulate
from pytorch_memlab.simulation.machine.torch_release import RELEASE

pytestmark = pytest.mark.skipif(RELEASE < (2, 9), reason="compiled from torch 2.9 on")


def nonzero(x: torch.Tensor) -> torch.Tensor:
    return x.nonzero() * 2


def masked(x: torch.Tensor) -> torch.Tensor:
    return x[x.sin() > 0] + 1


def two_masks(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x[x > 1] * 2, x[x < 2].exp()])


def number_of_a_sum(x: torch.Tensor) -> torch.Tensor:
    count = (x * 1000).sum().to(torch.int64).item()
    torch._check(count >= 0)
    return torch.ones(count, device=x.device) * 2


def repeated(x: torch.Tensor) -> torch.Tensor:
    return torch.repeat_interleave(x, (x * 3).to(torch.int64)) + 1


@pytest.mark.parametrize("program", [nonzero, masked, two_masks, number_of_a_sum, repeated])
def test_results_and_their_bytes_are_those_of_the_values(
    program: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    first = torch.tensor([0.0, 1.0, 2.0, 0.0, 1.0]).repeat(200)
    second = torch.tensor([2.0, 2.0, 2.0, 1.0, 0.0]).repeat(200)
    settings = config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True)
    with settings, simulate("h100"):
        compiled = torch.compile(program, fullgraph=True)
        for values in (first, second):
            expected = program(values)
            x = values.cuda()
            before = torch.cuda.memory_allocated()
            result = compiled(x)
            taken = torch.cuda.memory_allocated() - before
            assert torch.equal(result.cpu(), expected)
            assert taken == -(-expected.nbytes // 512) * 512
            del x, result
