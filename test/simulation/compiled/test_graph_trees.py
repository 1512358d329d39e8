"""``mode="reduce-overhead"``: PyTorch's own trees of CUDA graphs, on the simulated GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pytorch_memlab import simulate
from pytorch_memlab.simulation.machine.torch_release import RELEASE

pytestmark = [
    pytest.mark.skipif(RELEASE < (2, 13), reason="graphs of 2.13 have seeds of their own"),
    pytest.mark.filterwarnings("ignore:TensorFloat32"),
]

ROWS, WIDTH = 1024, 64
LAYER = WIDTH * WIDTH * 4 + 512  # the bias takes a block
TENSOR = ROWS * WIDTH * 4
DRAWN = 1024  # the seed and the offset of a graph that draws: two blocks
SEEDS = 0 if RELEASE >= (2, 14) else DRAWN  # of one that does not
MIB = 2**20
WORKSPACE = 32 * MIB
FLUSHED = 50 * MIB  # the second cache of an H100


def memory_of_steps(step: Callable[[torch.Tensor], Any], *, steps: int = 4) -> list[int]:
    """Bytes in use after each step, beside what was there before the first one."""
    x = torch.ones(ROWS, WIDTH, device="cuda")
    before = torch.cuda.memory_allocated()
    memory = []
    for _ in range(steps):
        torch.compiler.cudagraph_mark_step_begin()
        result = step(x)  # noqa: F841 - it is kept until the next one
        memory.append(torch.cuda.memory_allocated() - before)
    return memory


@pytest.mark.parametrize("compute", [False, True])
def test_warm_up_recording_and_execution(compute: bool) -> None:
    """The tree's empty graph and the recorded one have seeds; a replay's output has no owner.

    The pool keeps a segment for small blocks, with the copy of the input and the output, the
    workspace of cuBLAS for the stream that records, which is freed after the recording, and the
    buffer with which the warm-up has timed a kernel.
    """
    with simulate("h100", compute=compute) as machine:
        layer = nn.Linear(WIDTH, WIDTH).cuda().requires_grad_(requires_grad=False)
        step = torch.compile(lambda x: layer(x).relu().sin() + 1, mode="reduce-overhead")
        assert memory_of_steps(step) == [
            TENSOR + SEEDS,
            TENSOR + 2 * SEEDS,
            2 * SEEDS,
            2 * SEEDS,
        ]
        assert torch.cuda.memory_reserved() == 2 * MIB + 2 * MIB + WORKSPACE + FLUSHED
        private = machine.gpus[0].allocator.private_memory()
        assert private.reserved == 2 * MIB + WORKSPACE + FLUSHED
        assert not machine.approximations[0].uncounted


def test_both_passes_are_recorded() -> None:
    with simulate("h100", compute=False):
        layer = nn.Linear(WIDTH, WIDTH).cuda()
        compiled = torch.compile(lambda x: layer(x).relu().sin() + 1, mode="reduce-overhead")

        def step(x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = compiled(x)
            result.sum().backward()
            layer.zero_grad()
            return result

        memory = memory_of_steps(step)
        assert memory[1] - memory[0] == 2 * SEEDS
        assert memory[2:] == [3 * SEEDS] * 2  # of the empty graph, and of both passes


def test_a_graph_that_draws_has_a_seed() -> None:
    with simulate("h100", compute=False):
        step = torch.compile(
            lambda x: nn.functional.dropout(x.sin(), 0.5) + 1, mode="reduce-overhead"
        )
        assert memory_of_steps(step)[2:] == [SEEDS + DRAWN] * 2  # of the empty graph too


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.last(nn.functional.dropout(self.first(x).relu(), 0.3)) * self.calls


def losses(mode: str | None) -> list[float]:
    with simulate("h100"):
        torch.manual_seed(0)
        net = Net().cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        step = torch.compile(net, mode=mode)
        values = []
        for number in range(5):
            torch.compiler.cudagraph_mark_step_begin()
            torch.manual_seed(number)
            loss = step(torch.full((8, WIDTH), 1.0 + number, device="cuda")).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            values.append(loss.item())
        return values


def test_values_are_those_without_graphs() -> None:
    assert losses("reduce-overhead") == pytest.approx(losses(None), rel=1e-4)


def test_the_pool_goes_back_once_the_compiler_is_reset() -> None:
    with simulate("h100", compute=False) as machine:
        step = torch.compile(lambda x: x.sin() @ x.t(), mode="reduce-overhead")
        memory_of_steps(step)
        assert machine.gpus[0].allocator.private_memory().reserved
        torch._dynamo.reset()
        torch.cuda.empty_cache()
        assert machine.gpus[0].allocator.private_memory().reserved == 0


def test_what_is_not_recorded_as_a_whole_is_marked() -> None:
    with simulate("h100", compute=False) as machine:
        step = torch.compile(lambda x: x.sin().cpu() + 1, mode="reduce-overhead")
        memory_of_steps(step, steps=2)
        assert [op for op, _ in machine.approximations[0].uncounted] == ["torch.compile"]


@pytest.mark.parametrize("compute", [False, True])
def test_a_graph_of_fused_kernels_is_not_empty(
    compute: bool, recwarn: pytest.WarningsRecorder
) -> None:
    with simulate("h100", compute=compute) as machine:
        step = torch.compile(lambda x: x.relu().sin() + 1, mode="reduce-overhead")
        assert memory_of_steps(step)[2:] == [2 * SEEDS] * 2
        assert machine.gpus[0].allocator.private_memory().reserved
    assert not [warning for warning in recwarn if "Graph is empty" in str(warning.message)]


def test_the_configuration_of_inductor_asks_for_graphs_too() -> None:
    """Each compilation reads it, and the mode of a function goes before it."""

    def step(x: torch.Tensor) -> torch.Tensor:
        return x.relu().sin() + 1

    with simulate("h100", compute=False) as machine:
        compiled = torch.compile(step)
        for is_recorded in (False, True):
            with torch._inductor.config.patch({"triton.cudagraphs": is_recorded}):
                memory = memory_of_steps(compiled)
            assert memory[2:] == [2 * SEEDS if is_recorded else TENSOR] * 2
            assert bool(machine.gpus[0].allocator.private_memory().reserved) is is_recorded
            torch._dynamo.reset()
        assert not machine.approximations[0].uncounted


@pytest.mark.parametrize("compute", [False, True])
def test_outputs_that_share_a_block_are_kept_while_another_graph_warms_up(compute: bool) -> None:
    """The block is freed with the last of them."""
    with simulate("h100", compute=compute) as machine:
        halves = torch.compile(lambda x: (x * 2).chunk(2), mode="reduce-overhead")
        later = torch.compile(lambda x: x + 1, mode="reduce-overhead")
        x = torch.ones(ROWS, WIDTH, device="cuda")
        for _ in range(4):  # the first graph is replayed before the second one is recorded
            first, second = halves(x)
        result = later(first)
        assert not machine.approximations[0].uncounted
        if compute:
            assert torch.equal(result.cpu(), torch.full((ROWS // 2, WIDTH), 3.0))
        del result
        held = torch.cuda.memory_allocated()
        del first
        assert torch.cuda.memory_allocated() == held
        del second
        assert held - torch.cuda.memory_allocated() == TENSOR
