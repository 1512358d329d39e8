"""``backend="cudagraphs"``: trees of CUDA graphs over the ops of the program."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pytorch_memlab import simulate
from pytorch_memlab.simulation.machine.torch_release import RELEASE

pytestmark = pytest.mark.skipif(
    RELEASE < (2, 9), reason="compiled programs are simulated from 2.9 on"
)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> Any:
        return x + self.down(self.up(x).relu().sin())


def steps(backend: str, *, compute: bool) -> tuple[list[list[float]], list[int], list[str]]:
    """Sums of the output and of the gradients, and the memory in use, of each of five steps."""
    with simulate("h100", compute=compute) as machine:
        torch.manual_seed(0)
        net = Net().cuda()
        compiled = torch.compile(net, backend=backend)
        values, memory = [], []
        for number in range(5):
            x = torch.full((128, 64), 1.0 + number, device="cuda")
            out = compiled(x)
            out.square().sum().backward()
            memory.append(torch.cuda.memory_allocated())
            if compute:
                gradients = [p.grad.sum().item() for p in net.parameters() if p.grad is not None]
                values.append([out.sum().item(), *gradients])
            net.zero_grad()
        return values, memory, [op for op, _ in machine.approximations[0].uncounted]


@pytest.fixture(scope="module")
def of_eager() -> list[list[float]]:
    values, _, _ = steps("eager", compute=True)
    return values


def test_values_are_those_without_graphs(
    of_eager: list[list[float]], recwarn: pytest.WarningsRecorder
) -> None:
    """Inputs that a recording frees are read by its first replay, and not what it computed."""
    values, memory, uncounted = steps("cudagraphs", compute=True)
    for value, expected in zip(values, of_eager, strict=True):
        assert value == pytest.approx(expected, rel=1e-4)
    assert not uncounted
    assert not [warning for warning in recwarn if "eagerly" in str(warning.message)]
    assert memory == steps("cudagraphs", compute=False)[1]


def test_the_pool_keeps_what_the_recordings_take() -> None:
    _, memory, _ = steps("cudagraphs", compute=False)
    *_, before, last = memory
    assert before == last  # replays take nothing
    gradients = 2 * 64 * 256 * 4 + 64 * 4 + 256 * 4
    assert memory[0] - last >= gradients  # which the pool has, and nothing owns


def test_what_cannot_be_recorded_is_marked_and_runs() -> None:
    with simulate("h100") as machine:
        half = torch.compile(lambda x: (x.cpu() + 1).cuda() * 2, backend="cudagraphs")
        for _ in range(3):
            assert half(torch.ones(4, device="cuda")).tolist() == [4.0] * 4
        assert [op for op, _ in machine.approximations[0].uncounted] == ["torch.compile"]
