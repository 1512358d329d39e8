"""Functional collectives make the communicators of NCCL that other collectives make."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from pytorch_memlab import simulate
from pytorch_memlab.devices import simulated_machine
from pytorch_memlab.simulation.hardware.nccl_memory import Communicator

pytestmark = [
    pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed"),
    pytest.mark.filterwarnings("ignore:one rank of"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

functional = pytest.importorskip("torch.distributed._functional_collectives")


@pytest.fixture(params=[True, False], ids=["computed", "shapes"])
def rank_of_eight(request, monkeypatch):
    for name, value in {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}.items():
        monkeypatch.setenv(name, value)
    with simulate("24GiB", count=2, compute=request.param):
        dist.init_process_group("cpu:gloo,cuda:nccl")
        try:
            yield request.param
        finally:
            dist.destroy_process_group()


def communicators():
    return [gpu.communicators for gpu in simulated_machine().gpus]


COLLECTIVES = {
    "all_reduce": lambda x: functional.all_reduce(x, "sum", dist.group.WORLD),
    "all_reduce of two": lambda x: functional.all_reduce_coalesced([x, x], "sum", dist.group.WORLD)[
        0
    ],
    "broadcast": lambda x: functional.broadcast(x, 0, dist.group.WORLD),
    "all_gather": lambda x: functional.all_gather_tensor(x, 0, dist.group.WORLD),
    "reduce_scatter": lambda x: functional.reduce_scatter_tensor(x, "sum", 0, dist.group.WORLD),
    "all_to_all": lambda x: functional.all_to_all_single(x, None, None, dist.group.WORLD),
    "all_to_all with splits": lambda x: functional.all_to_all_single_autograd(
        x, [1] * 8, [1] * 8, dist.group.WORLD
    ),
}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_it_makes_a_communicator_of_the_gpu_that_holds_the_tensor(name, rank_of_eight):
    x = torch.ones(8, 4, device="cuda:1", requires_grad="autograd" in name)
    with torch.no_grad():
        COLLECTIVES[name](torch.ones(8, 4))
    assert communicators() == [(), ()]  # that was Gloo
    result = COLLECTIVES[name](x)
    is_exchange = name.startswith("all_to_all")
    made = Communicator(8, not is_exchange, 7 if is_exchange else 0, 8)
    assert communicators() == [(), (made,)]
    if rank_of_eight:
        total = 8.0 if name in ("all_reduce", "all_reduce of two", "reduce_scatter") else 1.0
        assert result.unique().tolist() == [total]
    assert result.device == x.device
