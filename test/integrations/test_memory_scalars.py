"""``MemoryScalars``: numbers for a logger from one call to the next, on all ranks if asked."""

from __future__ import annotations

import gc
import json
import subprocess
import sys

import pytest
import torch
from given_back import everything_given_back

from pytorch_memlab import MemoryScalars, simulate
from pytorch_memlab.errors import UnknownDeviceError

MIB = 2**20
GIB = 2**30


def take(mib):
    return torch.zeros(mib * MIB, dtype=torch.uint8, device="cuda")


def test_each_call_tells_of_the_time_since_the_last_one():
    with simulate("24GiB"):
        kept = [take(4)]
        scalars = MemoryScalars()
        take(30)
        kept.append(take(2))
        first, second = scalars(), scalars()
        del kept[0]
        third = scalars()
    # 4 MiB lie in 20 that are taken at once, 30 MiB by themselves, in which 2 MiB find room later.
    assert first == {
        "memory/allocated_bytes.all.peak": 34 * MIB,
        "memory/reserved_bytes.all.peak": 50 * MIB,
        "memory/active_bytes.all.peak": 34 * MIB,
        "memory/headroom": 24 * GIB - 50 * MIB,
        "memory/growth": 2 * MIB,
    }
    assert second == {
        **first,
        "memory/allocated_bytes.all.peak": 6 * MIB,
        "memory/active_bytes.all.peak": 6 * MIB,
        "memory/growth": 0,
    }
    assert third == {**second, "memory/growth": -4 * MIB}


def test_the_peaks_of_the_program_stay_and_two_objects_do_not_know_of_each_other():
    with simulate("24GiB"):
        scalars, others = MemoryScalars(), MemoryScalars()
        take(30)
        assert scalars()["memory/allocated_bytes.all.peak"] == 30 * MIB
        take(6)
        assert torch.cuda.max_memory_allocated() == 30 * MIB
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.max_memory_allocated() == 0
        take(2)
        assert torch.cuda.max_memory_allocated() == 2 * MIB
        assert scalars()["memory/allocated_bytes.all.peak"] == 6 * MIB
        assert others()["memory/allocated_bytes.all.peak"] == 30 * MIB


@pytest.mark.knows_simulation("the observers of the simulated machine")
def test_everything_is_given_back_with_the_object():
    with simulate("24GiB"):
        take(2)
        with everything_given_back():
            scalars = MemoryScalars()
            scalars()
            del scalars
            gc.collect()


def test_another_gpu():
    with simulate("24GiB", count=2):
        scalars = MemoryScalars("cuda:1")
        take(2)
        torch.zeros(8 * MIB, dtype=torch.uint8, device="cuda:1")
        assert scalars()["memory/allocated_bytes.all.peak"] == 8 * MIB
        with pytest.raises(UnknownDeviceError, match="no device 2 here"):
            MemoryScalars(2)


def test_without_a_gpu_there_are_no_numbers():
    with pytest.warns(UserWarning, match="pytorch-memlab run PROGRAM` simulates a GPU"):
        scalars = MemoryScalars()
    assert scalars() == {}


def test_one_process_has_the_maximum_over_ranks():
    with simulate("24GiB"):
        scalars = MemoryScalars(all_ranks=True)
        take(6)
        found = scalars()
    assert (found["memory/max_over_ranks"], found["memory/max_rank"]) == (6 * MIB, 0)


@pytest.mark.knows_simulation("the other ranks do not run")
def test_a_simulated_rank_does_not_tell_of_ranks_that_do_not_run(monkeypatch):
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "4")):
        monkeypatch.setenv(name, value)
    with simulate("24GiB"):
        torch.distributed.init_process_group("nccl")
        scalars = MemoryScalars(all_ranks=True)
        take(6)
        with pytest.warns(UserWarning, match="a simulation runs one rank"):
            found = scalars()
        torch.distributed.destroy_process_group()
    assert "memory/max_over_ranks" not in found
    assert found["memory/allocated_bytes.all.peak"] == 6 * MIB


RANKS = """
import json, sys, torch
from pytorch_memlab.integrations.scalars import over_ranks

rank, path = int(sys.argv[1]), sys.argv[2]
torch.distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=3)
sizes = [[10, 30, 30], [5, 4, 3]]
print(json.dumps([over_ranks(one[rank]) for one in sizes]))
torch.distributed.destroy_process_group()
"""


def test_every_rank_learns_the_maximum_and_its_rank(tmp_path):
    words = [sys.executable, "-c", RANKS]
    ranks = [
        subprocess.Popen([*words, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE)
        for rank in range(3)
    ]
    found = [json.loads(rank.communicate(timeout=120)[0]) for rank in ranks]
    expected = [{"max_over_ranks": 30, "max_rank": 1}, {"max_over_ranks": 5, "max_rank": 0}]
    assert found == [expected] * 3
