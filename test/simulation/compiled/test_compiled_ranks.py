"""Compiled programs as one rank of several: DDP, FSDP2 and tensor parallel."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from benchmarks.wrapper_text import Graph, recorded_graphs
from pytorch_memlab import simulate
from pytorch_memlab.simulation.machine.torch_release import RELEASE

pytestmark = [
    pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed"),
    pytest.mark.skipif(RELEASE < (2, 13), reason="texts of torch 2.13 are read"),
]

WIDTH, RANKS = 256, 4


@pytest.fixture(autouse=True)
def _rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", str(RANKS))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", "torch.compile runs eagerly")
        yield


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> Any:
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def blocks() -> Net:
    torch.manual_seed(0)
    return Net()


def replicated(compiles: bool) -> Any:
    """The weight of each linear layer fills a bucket of 1 MiB."""
    net = nn.parallel.DistributedDataParallel(blocks().cuda(), bucket_cap_mb=1)
    return torch.compile(net) if compiles else net


def sharded(compiles: bool) -> Any:
    from torch.distributed.fsdp import fully_shard

    net = blocks()
    for block in net.blocks:
        if compiles:
            block.compile()
        fully_shard(block)
    fully_shard(net)
    return net


def split(compiles: bool) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    net, mesh = blocks().cuda(), init_device_mesh("cuda", (RANKS,))
    for block in net.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return torch.compile(net) if compiles else net


Make = Callable[[bool], Any]
MAKERS = (replicated, sharded, split)


def run(
    make: Make, *, compute: bool = False, compiles: bool = True
) -> tuple[list[Graph], list[int], list[torch.Tensor]]:
    """The graphs of two steps, the bytes in use after each, and the last gradients."""
    memory = []
    with simulate("h100", compute=compute) as machine, recorded_graphs() as graphs:
        dist.init_process_group("nccl")
        net = make(compiles)
        x = torch.linspace(-1, 1, 32 * WIDTH).view(32, WIDTH).cuda()
        for _ in range(2):
            net.zero_grad()
            net(x).square().mean().backward()
            memory.append(torch.cuda.memory_allocated())
        assert not any(one.uncounted for one in machine.approximations)
        gradients = [one.grad for one in net.parameters() if one.grad is not None]
        local = [one.to_local() if hasattr(one, "to_local") else one for one in gradients]
        return graphs, memory, [one.cpu() for one in local] if compute else []


@pytest.mark.parametrize("make", MAKERS)
def test_requests_of_a_rank_are_those_of_the_text(make: Make) -> None:
    graphs, (first, second), _ = run(make)
    assert [graph.differences() for graph in graphs] == [[]] * len(graphs)
    assert sum(graph.length for graph in graphs) > 40
    assert first == second


@pytest.mark.parametrize("make", MAKERS)
def test_values_and_memory_of_a_rank_are_those_of_eager_code(make: Make) -> None:
    """Between steps the parameters, gradients and buffers of the rank's hooks are in use."""
    _, dry, _ = run(make)
    _, memory, gradients = run(make, compute=True)
    _, eager, expected = run(make, compute=True, compiles=False)
    assert len(gradients) == 3 * 6
    assert dry == memory == eager
    torch.testing.assert_close(gradients, expected, rtol=1e-4, atol=1e-6)


def test_the_graph_of_ddp_is_split_where_a_bucket_is_full() -> None:
    """Gradients of a bucket are reduced while those before it are computed.

    Each of six layers fills a bucket, the first norm is left, and other norms join a layer.
    """
    passes = {}
    for optimizes in (True, False):
        with torch._dynamo.config.patch(optimize_ddp=optimizes):
            graphs, _, _ = run(replicated)
        passes[optimizes] = len(graphs)
    assert passes == {False: 2 * 2, True: 2 * 2 * (6 + 1)}


def test_graphs_of_tensor_parallel_have_a_part_of_the_wide_layers() -> None:
    graphs, _, _ = run(split)
    wide, part = f"(32, {4 * WIDTH})", f"(32, {4 * WIDTH // RANKS})"
    texts = [graph.text for graph in graphs]
    assert all(wide not in text and part in text for text in texts)
    assert all("_c10d_functional" in text for text in texts)
