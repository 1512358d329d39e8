"""Simulated ranks of a job that run beside each other, in forks of the process of the test."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch.distributed as dist

from pytorch_memlab import simulate
from pytorch_memlab.fitting.child import ChildWork, can_fork, run_in_children
from pytorch_memlab.simulation.inspect import peers


@dataclass(frozen=True)
class Rank:
    """One rank to run."""

    rank: int
    world_size: int
    address: str
    compute: bool
    function: Any


def run_ranks(function, world_size, *, compute=False, beside=None):
    """The results of a function on each rank, or the text of its error.

    ``beside`` are the ranks that run, all of them by default. Each rank has a GPU of
    79 GiB, and all of them are in a group with NCCL.
    """
    assert can_fork()
    store = peers.make_store()
    ranks = range(world_size) if beside is None else beside
    address = peers.address(store.port, "test", ranks, ())
    works = [
        ChildWork(_run, Rank(rank, world_size, address, compute, function), partial(_lost, rank))
        for rank in ranks
    ]
    found = {}
    for index, result in run_in_children(works, len(works)):
        peers.tell_end(store, "test", ranks[index])
        found[ranks[index]] = result
    return [found[rank] for rank in ranks]


def _lost(rank, status):
    return f"rank {rank} ended with status {status}"


def _run(one):
    os.environ.update(RANK=str(one.rank), WORLD_SIZE=str(one.world_size), LOCAL_RANK=str(one.rank))
    os.environ[peers.VARIABLE] = one.address
    with simulate("h100", count=1, compute=one.compute):
        dist.init_process_group("nccl")
        try:
            return one.function(one.rank)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
