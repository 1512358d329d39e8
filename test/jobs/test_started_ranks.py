"""Ranks that a program itself starts under ``run`` are profiled as those of a launcher."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec

import pytest
import torch.distributed as dist
from support.python_process import run_python
from support.run_command import ROOT

needs_distributed = pytest.mark.skipif(
    not dist.is_available(), reason="this torch has no torch.distributed"
)

SPAWNING = """\
import sys, torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, TensorDataset

def work(rank, mebibytes):
    torch.cuda.set_device(rank)
    kept = torch.ones(mebibytes << 18, device="cuda")
    if rank == 1:
        more = torch.ones(62 << 18, device="cuda")
        if sys.argv[1] == "fails":
            raise ValueError("bad batch")
    if sys.argv[1] == "ends":
        data = TensorDataset(torch.ones(4, 2))
        loader = DataLoader(data, num_workers=1, multiprocessing_context=sys.argv[2])
        assert len(list(loader)) == 4

if __name__ == "__main__":
    ranks = 3 if sys.argv[1] == "ends" else 2
    mp.start_processes(work, (2,), nprocs=ranks, start_method=sys.argv[2])
"""


def run(folder, *words, program=SPAWNING):
    (folder / "train.py").write_text(program)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = ["-m", "pytorch_memlab", "run", "--gpu", "24GiB", *words]
    return run_python(command, cwd=folder, env=environment)


def runs(files):
    found = [json.loads(file.read_text())["runs"][0] for file in sorted(files)]
    names = ("rank", "world_size", "attempt", "launcher", "exit_status", "exception")
    return [tuple(one[name] for name in names) for one in found]


ANSWER = """\
job.memlab: 3 ranks of train.py, started by mp.spawn

  exit status 0: ranks 0-2

peak 64.0 MiB on rank 1 of 24.00 GiB
  62.0 MiB above the median of 2.0 MiB (32.00 times)

rank 1: 64.0 MiB, because train.py:9 holds 62.0 MiB more  more = torch.ones(6...
ranks 0, 2: 2.0 MiB

"""


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_processes_of_mp_spawn_are_ranks_and_workers_of_a_data_loader_are_none(method, tmp_path):
    """Each has its own GPU: a forked one cannot have more than the program that forks."""
    gpus = ["--num-gpus", "3"] if method == "fork" else []

    done = run(tmp_path, *gpus, "train.py", "ends", method)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(ANSWER)
    assert "created no CUDA tensor" not in done.stderr
    assert "written to" not in done.stderr
    assert os.listdir(tmp_path) == ["train.py"]


def test_a_spawned_rank_that_fails_leaves_its_profile_and_its_own_traceback(tmp_path):
    done = run(tmp_path, "-o", "job.memlab", "train.py", "fails", "spawn")

    assert done.returncode == 1
    ends = {end[0]: end for end in runs((tmp_path / "job.memlab").glob("rank*.json"))}
    assert ends[1] == (1, 2, 0, "mp.spawn", 1, "ValueError: bad batch")
    assert sorted(ends) == [0, 1]
    assert "rank 1 failed first" in done.stdout
    traceback = done.stderr.partition("-- Process 1 terminated")[2]
    assert "in work\n" in traceback
    assert "pytorch_memlab" not in traceback


def test_files_that_are_no_folder_get_the_rank_in_their_names(tmp_path):
    program = SPAWNING.replace("nprocs=ranks", "nprocs=1")
    again = f"{program}    mp.spawn(work, (5,), nprocs=1)\n"

    done = run(tmp_path, "-o", "out.json", "train.py", "works", "spawn", program=again)

    assert done.returncode == 0, done.stderr
    files = ["out.json", "out.rank0.attempt1.json", "out.rank0.json", "train.py"]
    assert sorted(os.listdir(tmp_path)) == files
    devices = [json.loads((tmp_path / name).read_text())["devices"] for name in files[:3]]
    peaks = [[one["peak_active"] for one in found] for found in devices]
    assert peaks == [[0], [5 << 20], [2 << 20]]


def test_a_verdict_is_that_of_the_rank_that_needs_more(tmp_path):
    done = run(tmp_path, "--max-peak", "32MiB", "train.py", "works", "spawn")

    assert done.returncode == 1
    assert "process 1 terminated with exit code 3" in done.stderr
    assert "no verdict" not in done.stderr


def test_what_a_spawned_rank_runs_out_of_is_explained(tmp_path):
    program = SPAWNING.replace(
        'raise ValueError("bad batch")', 'torch.ones(1 << 34, device="cuda")'
    )

    done = run(tmp_path, "train.py", "fails", "spawn", program=program)

    assert done.returncode == 1
    assert "held at the error by 64.0 MiB other tensors" in done.stderr
    assert "OutOfMemoryError" in done.stdout


LIGHTNING = """\
import sys, torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1024, 1024, bias=False)

    def training_step(self, batch, index):
        extra = torch.ones((62 if self.global_rank else 8) << 18, device=self.device)
        return self.layer(batch[0]).sum() + extra[0]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

if __name__ == "__main__":
    data = DataLoader(TensorDataset(torch.ones(8, 1024)), batch_size=2, num_workers=1)
    quiet = dict(
        logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )
    gpus = dict(accelerator="cuda", devices=2, strategy=sys.argv[1])
    Trainer(max_steps=2, **gpus, **quiet).fit(Net(), data)
"""


@needs_distributed
@pytest.mark.skipif(not find_spec("lightning"), reason="Lightning is not installed")
@pytest.mark.parametrize(
    ("strategy", "launcher"), [("ddp", "lightning"), ("ddp_spawn", "mp.spawn")]
)
def test_all_ranks_that_lightning_starts_are_profiled(strategy, launcher, tmp_path):
    words = ("--num-gpus", "2", "-o", "job.memlab", "train.py", strategy)
    done = run(tmp_path, *words, program=LIGHTNING)

    assert done.returncode == 0, done.stderr
    files = sorted((tmp_path / "job.memlab").glob("rank*.json"))
    assert [file.name for file in files] == ["rank0.attempt0.json", "rank1.attempt0.json"]
    assert runs(files) == [(rank, 2, 0, launcher, 0, "") for rank in range(2)]
    peaks = [json.loads(file.read_text())["job"]["active"] for file in files]
    assert peaks[1] - peaks[0] == (62 - 8) << 20
    assert f"2 ranks of train.py, started by {launcher}" in done.stdout


RAY = """\
import torch, ray
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

def train(config):
    import ray.train
    rank = ray.train.get_context().get_world_rank()
    kept = torch.ones(config["mebibytes"] << 18, device=f"cuda:{rank}")
    if rank == 1:
        more = torch.ones(62 << 18, device=f"cuda:{rank}")

if __name__ == "__main__":
    ray.init(num_cpus=3, include_dashboard=False, object_store_memory=100_000_000)
    workers = ScalingConfig(num_workers=2)
    TorchTrainer(train, train_loop_config={"mebibytes": 2}, scaling_config=workers).fit()
"""


@pytest.mark.skipif(not find_spec("ray"), reason="Ray is not installed")
def test_all_ranks_that_ray_train_starts_are_profiled(tmp_path):
    done = run(tmp_path, "--num-gpus", "2", "-o", "job.memlab", "train.py", program=RAY)

    assert done.returncode == 0, done.stderr
    files = sorted((tmp_path / "job.memlab").glob("rank*.json"))
    assert runs(files) == [(rank, 2, 0, "Ray Train", 0, "") for rank in range(2)]
    peaks = [json.loads(file.read_text())["job"]["active"] for file in files]
    assert peaks == [2 << 20, 64 << 20]
