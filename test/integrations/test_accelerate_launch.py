"""``run -- accelerate launch``: the ranks are profiled, and one answer is made of them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.run_command import ROOT

pytest.importorskip("accelerate")

PROGRAM = """\
import torch
from accelerate import Accelerator

accelerator = Accelerator()
kept = torch.ones(accelerator.process_index + 1 << 18, device=accelerator.device)
"""


def test_ranks_of_accelerate_launch_are_profiled(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    launch = [sys.executable, "-m", "pytorch_memlab", "run", "--gpu", "24GiB", "-m", "--"]
    launch += ["accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]

    done = subprocess.run(
        [*launch, "train.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "job.memlab: 2 ranks of train.py, started by torchrun"
    assert "peak 2.0 MiB on rank 1 of 24.00 GiB" in lines
