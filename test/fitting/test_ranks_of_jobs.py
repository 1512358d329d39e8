"""``fit --ranks`` runs one of each kind of rank, and says what each needs."""

from __future__ import annotations

import re

import pytest
import torch
import torch.distributed as dist
from support.fit_command import fitted

MIB = 2**20

pytestmark = [
    pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.usefixtures("no_rank"),
]


UNEVEN = """\
import os
import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
assert int(os.environ["LOCAL_RANK"]) == rank % torch.cuda.device_count()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
rows = torch.empty(18, 4 << 18, device="meta").chunk(size)
own = len(rows[rank]) if rank < len(rows) else 0
shard = torch.empty(own, 4 << 18, device="cuda")
"""
"""Rows of 4 MiB each. 18 of them in 8 chunks: 3 for each of six ranks, and none for two."""


def rows_of(out):
    """The rows of the table: ranks and peak."""
    return re.findall(r"^\w+ [\d-]+(?:, \w+ [\d-]+)* +(\d[-\d, .]*?) +(\S+) ", out, re.MULTILINE)


def test_the_rank_at_which_shards_get_smaller_is_found(tmp_path, capsys):
    script = tmp_path / "uneven.py"
    script.write_text(UNEVEN)
    code, out, _ = fitted(capsys, "--ranks", "all", "--mesh", "dp=8", "--gpu", "24GiB", str(script))
    assert code == 0
    assert rows_of(out) == [("0-5", "12.0M"), ("6-7", "0")]
    assert "fits on all ranks" in out
    assert "no rank used a communicator of NCCL" in out


def test_one_rank_with_memory_of_unknown_size_decides_the_words_of_all(tmp_path, capsys):
    script = tmp_path / "decomposes.py"
    script.write_text(UNEVEN + "if own:\n    torch.linalg.svdvals(shard[:, :8])\n")
    code, out, _ = fitted(capsys, "--ranks", "all", "--mesh", "dp=8", "--gpu", "24GiB", str(script))
    assert code == 0
    assert "\nfits as far as memory is counted on all ranks" in f"\n{out}"
    answers = re.findall(r"^\w+ ([\d-]+) .* (yes|as counted)$", out, re.MULTILINE)
    assert answers == [("0-5", "as counted"), ("6-7", "yes")]


def test_what_nccl_takes_is_said_to_be_in_neither_column(tmp_path, capsys):
    script = tmp_path / "reduces.py"
    script.write_text(UNEVEN + 'dist.all_reduce(torch.empty(16 << 18, device="cuda"))\n')
    code, out, _ = fitted(capsys, "--ranks", "0", "--mesh", "dp=8", "--gpu", "24GiB", str(script))
    assert code == 0
    start = "neither peak nor left has NCCL's buffers: about "
    [sentence] = re.findall(rf"^{start}.*\n  .*", out, re.MULTILINE)
    sizes = re.findall(r"(\d+\.\d) MiB", sentence)
    assert " ".join(sentence.split()) == (
        f"{start}{sizes[0]} MiB on the rank with most of them, at least {sizes[1]} MiB and at most"
        f" {sizes[2]} MiB"
    )
    about, least, most = map(float, sizes)
    assert 0 < least < about < most
    [(_, left)] = re.findall(r"^\w+ 0 +0 +(\S+?)~? +(\S+)G ", out, re.MULTILINE)
    assert left == f"{24 - (28 + about) / 1024:.2f}"


def test_ranks_between_two_that_need_the_same_are_said_not_to_have_run(tmp_path, capsys):
    script = tmp_path / "alike.py"
    script.write_text(UNEVEN.replace("own = ", "own = 3  # "))
    code, out, _ = fitted(capsys, "--ranks", "all", "--mesh", "dp=8", "--gpu", "24GiB", str(script))
    assert code == 0
    assert re.search(r"^all +0-7 +12\.0M ", out, re.MULTILINE)
    assert (
        "the first and the last rank of dp need the same, and those between are taken to need it"
        " too\n"
    ) in out.replace("\n  ", " ")


def test_ranks_that_are_named_run(tmp_path, capsys):
    script = tmp_path / "uneven.py"
    script.write_text(UNEVEN)
    code, out, _ = fitted(
        capsys, "--ranks", "5-6", "--mesh", "dp=8", "--num-gpus", "4", "--gpu", "24GiB", str(script)
    )
    assert code == 0
    assert "2 ranks of 8 without values" in out
    assert [ranks for ranks, _ in rows_of(out)] == ["5", "6"]


def test_the_rank_that_does_not_fit_decides(tmp_path, capsys):
    script = tmp_path / "large.py"
    script.write_text(UNEVEN + "more = torch.empty((2 if rank else 30) << 28, device='cuda')\n")
    code, out, _ = fitted(capsys, "--ranks", "0,3", "--mesh", "dp=8", "--gpu", "24GiB", str(script))
    assert code == 3
    assert "does not fit" in out
    assert "limit: dp 0 (rank 0), 30.01 GiB of 24.00 GiB" in out


def test_the_rank_that_fails_is_named_not_one_that_waits_for_it(tmp_path, capsys):
    script = tmp_path / "failing.py"
    script.write_text(
        UNEVEN + "if rank == 2:\n    raise ValueError('bad shard')\n"
        "dist.broadcast_object_list([None], src=2)\n"
    )
    code, out, err = fitted(capsys, "--ranks", "1-3", "--mesh", "dp=8", str(script))
    assert code == 2
    assert "no verdict: rank 2 failed" in out
    assert "fails on rank 2 at" in out
    assert "ValueError: bad shard" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ranks", "all"], "--ranks needs the number of ranks"),
        (["--ranks", "9", "--mesh", "dp=8"], "the ranks are 0 to 7"),
        (["--ranks", "all", "--mesh", "dp=8", "--gpu", "a100,h100"], "name one with --gpu"),
        (["--mesh", "dp=8", "--budget", "1GiB"], "--ranks is a question by itself"),
        (["--mesh", "dp=8", "--output", "x.svg"], "--output draws the curve of --vary"),
    ],
)
def test_options_that_do_not_go_together(words, message, tmp_path, capsys):
    script = tmp_path / "uneven.py"
    script.write_text(UNEVEN)
    code, _, err = fitted(capsys, *words, str(script))
    assert code == 2
    assert message in err


PIPELINE = """\
import os
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import init_device_mesh

SAVED = 64 << 20

class Keep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(torch.empty(len(x) * SAVED, dtype=torch.uint8, device=x.device))
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        ctx.saved_tensors
        return grad * 1

class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x):
        return Keep.apply(x * self.weight)

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
mesh = init_device_mesh("cuda", (3, 2), mesh_dim_names=("pp", "dp"))
device = torch.device("cuda", torch.cuda.current_device())
rank = mesh["pp"].get_local_rank()
model = Stage().to(device)
count = 6 if "Interleaved" in sys.argv[1] else 3
stages = [
    pipelining.PipelineStage(model, number, count, device, group=mesh["pp"].get_group())
    for number in range(rank, count, 3)
]
kind = getattr(pipelining, sys.argv[1])
schedule = kind(
    stages if count == 6 else stages[0], 4 if count == 3 else 6, loss_fn=lambda a, b: (a - b).sum()
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
samples = 8 if count == 3 else 6
x, target = torch.ones(samples, 8, device=device), torch.ones(samples, 8, device=device)
for _ in range(10):
    schedule.step(*[x][: rank == 0], **({"target": target} if rank == 2 else {}))
    optimizer.step()
    optimizer.zero_grad()
"""
"""Each sample keeps 64 MiB; a micro-batch has two, and one of 8 has one."""


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13), reason="as torch 2.13 has it"
)
def test_each_stage_holds_its_micro_batches_and_another_schedule_is_tried(tmp_path, capsys):
    script = tmp_path / "stages.py"
    script.write_text(PIPELINE)
    words = ("--ranks", "all", "--mesh", "pp=3,dp=2", "--gpu", "24GiB", str(script))
    code, out, _ = fitted(capsys, *words, "ScheduleGPipe")
    assert code == 0
    assert [ranks for ranks, _ in rows_of(out)] == ["0-1", "2-3", "4-5"]
    # Four micro-batches of 128 MiB, and a segment of 2 MiB for the small tensors.
    assert [peak for _, peak in rows_of(out)] == ["514.0M"] * 3
    assert re.findall(r" (\d/4)  yes", out) == ["4/4"] * 3
    assert "the first and the last rank" not in out  # both ran, and there is none between
    # Stage 0 of 3 holds three micro-batches with 1F1B; eight of half the size hold as much.
    assert "  Schedule1F1B in place of ScheduleGPipe: 386.0 MiB on rank 0, 128.0 MiB less" in out
    assert "  8 micro-batches in place of 4: 514.0 MiB on rank 0, the same" in out
    code, out, _ = fitted(capsys, *words, "Schedule1F1B")
    assert re.findall(r" (\d/4)  yes", out) == ["3/4", "2/4", "1/4"]
    assert [peak for _, peak in rows_of(out)] == ["386.0M", "258.0M", "130.0M"]
    assert "limit: pp 0 (ranks 0-1), 386.0 MiB of 24.00 GiB" in out
    assert "  Schedule1F1B holds 3 of 4 micro-batches of stage 0 at a time" in out
    assert "  8 micro-batches in place of 4: 194.0 MiB on rank 0, 192.0 MiB less" in out
    assert "layers that hold 128.0 MiB moved from pp 0 to pp 2 would make" in out.replace("\n", " ")


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13), reason="as torch 2.13 has it"
)
def test_a_rank_with_two_stages_has_each_micro_batch_twice(tmp_path, capsys):
    script = tmp_path / "stages.py"
    script.write_text(PIPELINE)
    words = ("--ranks", "0,2,4", "--mesh", "pp=3,dp=2", "--gpu", "24GiB", str(script))
    code, out, _ = fitted(capsys, *words, "ScheduleInterleaved1F1B")
    assert code == 0
    # 2(3 - i - 1) + 3 + 1 of six micro-batches of 64 MiB in each of two stages.
    assert re.findall(r" (\d/\d+)  yes", out) == ["8/12", "6/12", "4/12"]
    assert [peak for _, peak in rows_of(out)] == ["514.0M", "386.0M", "258.0M"]
    assert "8 of 12 micro-batches of stages 0, 3 at a time" in out.replace("\n   ", "")
