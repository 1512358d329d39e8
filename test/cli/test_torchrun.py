"""Programs that torchrun starts, with the command in each process and as a process of one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from textwrap import dedent

import pytest
import torch.distributed as dist
from support.python_process import run_python

pytestmark = [
    pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed"),
]

TRAIN = """\
import os
import torch
import torch.distributed as dist

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
x = torch.ones(256 << rank, device="cuda")
dist.all_reduce(x)
dist.barrier()
with open(f"rank{rank}", "w") as file:
    print(dist.get_rank(), dist.get_world_size(), x.device, x[0].item(), file=file)
dist.destroy_process_group()
"""

RANKS = ["0 2 cuda:0 2.0\n", "1 2 cuda:1 2.0\n"]


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_python(arguments, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"})


def test_each_process_is_one_rank_and_writes_its_own_tables(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
    run = ("-m", "pytorch_memlab", "run", "--gpu", "24GiB", "--count", "2", "-o", "out.txt")
    found = python(tmp_path, *torchrun, *run, "-c", "delta", "train.py")
    assert found.returncode == 0, found.stderr
    assert [(tmp_path / f"rank{rank}").read_text() for rank in (0, 1)] == RANKS
    tables = [(tmp_path / f"out.rank{rank}.txt").read_text() for rank in (0, 1)]
    lines = [line.strip() for table in tables for line in table.splitlines()]
    assert [line for line in lines if "x = torch" in line] == [
        '1.00K    8  x = torch.ones(256 << rank, device="cuda")',
        '2.00K    8  x = torch.ones(256 << rank, device="cuda")',
    ]
    assert not (tmp_path / "out.txt").exists()
    assert found.stdout == ""
    assert found.stderr.count("memory profile written to") == 1


def test_it_may_be_started_by_a_program_that_is_simulated(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "start.py").write_text(
        dedent(
            """\
            import subprocess, sys
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1"]
            subprocess.run([*torchrun, "train.py"], check=True)
            """
        )
    )
    run = ("-m", "pytorch_memlab", "run", "--gpu", "24GiB", "--count", "2", "-f", "<module>")
    found = python(tmp_path, *run, "start.py")
    assert found.returncode == 0, found.stderr
    assert (tmp_path / "rank0").read_text() == "0 1 cuda:0 1.0\n"
