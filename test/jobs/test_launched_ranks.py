"""Ranks that real launchers start are profiled, and one answer is made of what they leave."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch.distributed as dist
from support.python_process import run_python
from support.run_command import ROOT

from pytorch_memlab.cli.main import main

needs_torchrun = pytest.mark.skipif(
    not dist.is_available(), reason="this torch has no torch.distributed"
)

PROGRAM = """\
import os, sys, time, torch

def work(mebibytes):
    return torch.ones(mebibytes << 18, device="cuda")

def until(path):
    while not os.path.exists(path):
        time.sleep(0.01)

rank = int(os.environ["RANK"])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
kept = work(2)
if rank == 1:
    more = work(62)
    if sys.argv[1] != "ends":  # the others are told of their end once they can write it
        for other in range(int(os.environ["WORLD_SIZE"])):
            until(f"job.memlab/rank{other}.attempt{os.environ['TORCHELASTIC_RESTART_COUNT']}.json")
    if sys.argv[1] == "killed":
        os.kill(os.getpid(), 9)
    if sys.argv[1] == "fails":
        raise ValueError("bad batch")
elif sys.argv[1] != "ends":
    time.sleep(600)
"""


def launched(folder, *words, options=("-o", "job.memlab", "--save-every", "1")):
    (folder / "train.py").write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = ["-m", "pytorch_memlab", "run", "--gpu", "24GiB", *options, *words]
    return run_python(command, cwd=folder, env=environment)


def ends(folder):
    files = sorted((folder / "job.memlab").glob("rank*.json"))
    runs = [json.loads(file.read_text())["runs"][0] for file in files]
    return [(run["rank"], run["attempt"], run["exit_status"], run["exception"]) for run in runs]


ANSWER = """\
job.memlab: 3 ranks of train.py, started by torchrun

  exit status 0: ranks 0-2

peak 64.0 MiB on rank 1 of 24.00 GiB
  62.0 MiB above the median of 2.0 MiB (32.00 times)

rank 1: 64.0 MiB, because train.py:4 holds 62.0 MiB more  return torch.ones(m...
ranks 0, 2: 2.0 MiB

"""


@needs_torchrun
def test_all_ranks_that_torchrun_starts_are_profiled(tmp_path):
    words = ("--", "torchrun", "--nproc-per-node", "3", "train.py", "ends")
    done = launched(tmp_path, *words, options=())

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(ANSWER)
    assert os.listdir(tmp_path) == ["train.py"]


@needs_torchrun
def test_a_killed_rank_leaves_its_last_file_and_the_others_their_end(tmp_path):
    done = launched(tmp_path, "--", "torchrun", "--nproc-per-node", "3", "train.py", "killed")

    assert done.returncode == 1
    assert ends(tmp_path) == [(0, 0, 143, "SIGTERM"), (1, 0, None, ""), (2, 0, 143, "SIGTERM")]
    assert "the process did not end\n" in done.stdout
    assert "  SIGTERM: ranks 0, 2\n" in done.stdout


@needs_torchrun
def test_each_attempt_of_a_job_that_a_module_starts_again_is_kept(tmp_path):
    torchrun = ("-m", "--", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1")
    done = launched(tmp_path, *torchrun, "train.py", "fails")

    assert done.returncode == 1
    assert ends(tmp_path) == [
        (0, 0, 143, "SIGTERM"),
        (0, 1, 143, "SIGTERM"),
        (1, 0, 1, "ValueError: bad batch"),
        (1, 1, 1, "ValueError: bad batch"),
    ]
    start = "job.memlab: 2 ranks of train.py, started by torchrun, attempt 2\n"
    assert done.stdout.startswith(start)
    for attempt in (1, 2):
        assert f"attempt {attempt}: rank 1 failed first, at " in done.stdout


ASKED = """\
import os, sys, time, torch
kept = torch.ones(1 << 18, device="cuda")
while not os.path.exists("written"):
    time.sleep(0.01)
sys.exit(0)
"""


@needs_torchrun
@pytest.mark.skipif(sys.platform != "linux", reason="the ranks are found in /proc")
def test_sigusr1_to_the_command_lets_all_ranks_write_and_go_on(tmp_path):
    (tmp_path / "train.py").write_text(ASKED)
    folder = tmp_path / "job.memlab"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    words = ["run", "--gpu", "24GiB", "-o", "job.memlab", "--save-every", "3000", "--"]
    words += ["torchrun", "--nproc-per-node", "2", "train.py"]
    command = [sys.executable, "-m", "pytorch_memlab", *words]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            deadline = time.monotonic() + 120
            files = [folder / "rank0.attempt0.json", folder / "rank1.attempt0.json"]
            while not all(_has_peak(file) for file in files):
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < deadline, list(folder.glob("*"))
                if folder.exists():  # the handlers of the ranks are there some time after this
                    os.kill(process.pid, signal.SIGUSR1)
                time.sleep(0.5)
            (tmp_path / "written").touch()
            _, errors = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 0, errors
    assert ends(tmp_path) == [(0, 0, 0, ""), (1, 0, 0, "")]


def _has_peak(file):
    """True for a file of a rank that has allocated, and had not ended."""
    if not file.exists():
        return False
    (run,) = json.loads(file.read_text())["runs"]
    return run["exit_status"] is None


LAUNCHER = """\
#!{python}
import os, subprocess, sys
variables = {variables}
def start(rank):
    own = {{name: str(value(rank)) for name, value in variables.items()}}
    return subprocess.Popen(sys.argv[1:], env={{**os.environ, **own}})
ranks = [start(0), start(1)]
sys.exit(max(rank.wait() for rank in ranks))
"""

VARIABLES = (
    "{'OMPI_COMM_WORLD_RANK': int, 'OMPI_COMM_WORLD_LOCAL_RANK': int,"
    " 'OMPI_COMM_WORLD_SIZE': lambda r: 2, 'OMPI_COMM_WORLD_LOCAL_SIZE': lambda r: 2}"
)


def test_ranks_of_another_launcher_are_told_by_its_variables_and_what_they_start_is_none(tmp_path):
    """It is not installed: a program of its name sets what it sets."""
    launcher = tmp_path / "mpirun"
    launcher.write_text(LAUNCHER.format(python=sys.executable, variables=VARIABLES))
    launcher.chmod(0o755)
    (tmp_path / "own.py").write_text(
        "import os, subprocess, sys, torch\n"
        "kept = torch.ones(1 << 18, device='cuda:1')\n"  # one GPU for each rank
        "assert 'PYTORCH_MEMLAB_RUN' not in os.environ\n"
        "subprocess.run([sys.executable, 'tool.py'], check=True)\n"
    )
    (tmp_path / "tool.py").write_text("import sys; print(sys.argv, 'torch' in sys.modules)\n")

    done = launched(tmp_path, "--", str(launcher), sys.executable, "-u", "own.py")

    assert done.returncode == 0, done.stderr
    assert ends(tmp_path) == [(0, 0, 0, ""), (1, 0, 0, "")]
    assert "2 ranks of own.py" in done.stdout
    assert done.stdout.count("['tool.py'] False\n") == 2
    assert len(list(Path(tmp_path, "job.memlab").glob("rank*"))) == 2


def test_a_launcher_that_is_not_there_is_an_error(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["run", "--gpu", "24GiB", "-o", "job.memlab", "--", "deepspeed", "train.py"]
    assert main(words) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.endswith("error: there is no command deepspeed on the PATH\n")


TALKING = """\
import os, torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
size, everyone = torch.tensor([rank + 3], device="cuda"), [None] * 2
dist.all_gather_object(everyone, f"rank {rank}")
dist.send(size, 1) if rank == 0 else dist.recv(size, 0)
with open(f"seen{rank}", "w") as file:
    print(size.item(), everyone, file=file)
if rank == 1:
    raise ValueError("bad batch")
dist.recv(size, 1)
"""


@needs_torchrun
def test_ranks_that_torchrun_starts_get_what_the_others_send(tmp_path):
    """One that waits for a rank which has failed ends with it, as with NCCL."""
    (tmp_path / "talk.py").write_text(TALKING)
    words = ("--dry-run", "--no-try", "-o", "job.memlab")
    torchrun = ("--", "torchrun", "--nproc-per-node", "2", "talk.py")

    done = launched(tmp_path, *torchrun, options=words)

    assert done.returncode == 1
    seen = [file.read_text() for file in tmp_path.glob("seen*")]
    assert seen == ["3 ['rank 0', 'rank 1']\n"] * 2, done.stderr
    assert ends(tmp_path)[1] == (1, 0, 1, "ValueError: bad batch")
    (_, _, status, exception), _ = ends(tmp_path)
    assert (status, exception) == (143, "SIGTERM") or "has ended" in exception
