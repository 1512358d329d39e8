"""The verdict of ``fit`` counts what NCCL takes beside the allocator."""

from __future__ import annotations

import pytest
import torch.distributed as dist
from support.fit_command import fitted

import pytorch_memlab

MIB = 2**20

pytestmark = [
    pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed"),
    pytest.mark.filterwarnings("ignore"),
]

PROGRAM = """
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
tensor = torch.zeros(16 << 20, device="cuda")
if {collective}:
    dist.all_reduce(tensor)
"""


def rank_of_two(monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def answer(tmp_path, monkeypatch, capsys):
    """Run ``fit`` on a rank of two; its exit code, what it prints, and its row of the frame."""
    rank_of_two(monkeypatch)

    def run(gpu, *, collective):
        script = tmp_path / "rank.py"
        script.write_text(PROGRAM.format(collective=collective))
        code, text, _ = fitted(capsys, "--gpu", gpu, "--cuda-context", "100MiB", str(script))
        frame = pytorch_memlab.fit(str(script), gpus=[gpu], context="100MiB")
        return code, text, frame.iloc[0]

    return run


def test_a_peak_that_fits_may_not_with_nccl(answer):
    # 64 MiB of the tensor and 100 of the context: 236 are left, and NCCL takes up to 386.
    code, text, row = answer("400MiB", collective=True)
    assert row["verdict"] == "may not fit"
    assert row["nccl_at_least"] == 2 * MIB
    assert row["nccl_at_most"] == 386 * MIB
    assert row["on_device"] == row["peak"] + 100 * MIB + row["nccl"]
    assert "perhaps: 236.0 MiB free, up to 386.0 MiB not counted" in text
    assert "what nvidia-smi shows at the peak; left is the rest" in text
    assert row["headroom"] == 0  # as ``run`` says of the same program: 0 B free
    assert code != 0


def test_without_a_collective_there_is_no_communicator(answer):
    code, text, row = answer("400MiB", collective=False)
    assert row["verdict"] == "fits"
    assert (row["nccl_at_least"], row["nccl"], row["nccl_at_most"]) == (0, 0, 0)
    assert row["on_device"] == row["peak"] + 100 * MIB
    assert "nvidia-smi" not in text
    assert code == 0


def test_with_room_for_all_of_it_the_program_fits(answer):
    code, _, row = answer("600MiB", collective=True)
    assert row["verdict"] == "fits"
    assert row["headroom"] == 600 * MIB - row["on_device"] == 146 * MIB
    assert code == 0


GROUPS = """
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
tensor = torch.zeros(16 << 20, device="cuda")
for size in {sizes}:
    group = dist.new_group([0, 1])
    dist.all_reduce(tensor, group=group)
    dist.destroy_process_group(group)
    kept = torch.zeros(size << 18, device="cuda")
"""


@pytest.mark.parametrize(
    ("sizes", "communicators"),
    [
        ([0, 0], 1),  # the second one is made when the first one is gone
        ([1000], 0),  # it is gone when the allocator takes most, which is more than it took
        ([0, 1000], 0),
        ([1000, 0], 1),
    ],
)
def test_a_communicator_counts_until_the_program_destroys_it(
    sizes, communicators, tmp_path, monkeypatch
):
    rank_of_two(monkeypatch)
    (tmp_path / "groups.py").write_text(GROUPS.format(sizes=sizes))
    frame = pytorch_memlab.fit(str(tmp_path / "groups.py"), gpus=["24GiB"], context="100MiB")
    assert frame.iloc[0]["nccl"] == communicators * 290 * MIB
