"""The memory of NCCL in the verdict of ``run``, in its file, and in what shows the file again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytorch_memlab.cli.main import main

MIB = 2**20
PROGRAM = """\
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
tensor = torch.zeros(16 << 20, device="cuda")
if {collective}:
    dist.all_reduce(tensor)
"""

pytestmark = [
    pytest.mark.filterwarnings("ignore:one rank of"),
    pytest.mark.knows_simulation("an estimate of what a real GPU's driver counts"),
]


@pytest.fixture
def measured(tmp_path, monkeypatch, capsys):
    """Run a rank of two; the device in its file, and the verdict on the screen, twice."""
    monkeypatch.chdir(tmp_path)
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)

    def verdict(text: str) -> str:
        joined = " ".join(text.split())
        return joined[joined.index("peak 64.0 MiB reserved") :].partition(" free")[0] + " free"

    def run(gpu: str, *, collective: bool) -> tuple[dict[str, Any], str]:
        (tmp_path / "rank.py").write_text(PROGRAM.format(collective=collective))
        options = ["--dry-run", "--gpu", gpu, "--cuda-context", "100MiB"]
        main(["run", *options, "-o", "rank.json", "--force", "rank.py"])
        text = verdict(capsys.readouterr().err)  # beside a file there is the headline alone
        main(["show", "rank.json"])
        assert verdict(capsys.readouterr().out) == text
        (device,) = json.loads((tmp_path / "rank.json").read_text())["devices"]
        return device, text

    return run


def sizes(device: dict[str, Any]) -> tuple[int, int, int]:
    return device["nccl_at_least"], device["nccl"], device["nccl_at_most"]


def test_a_peak_that_fits_may_not_with_nccl(measured):
    # 64 MiB of the tensor and 100 of the context: 236 are left, and NCCL takes up to 386.
    device, text = measured("400MiB", collective=True)
    assert sizes(device) == (2 * MIB, 290 * MIB, 386 * MIB)
    assert text == (
        "peak 64.0 MiB reserved + 100.0 MiB context + 290.0 MiB~ NCCL (2.0 MiB to 386.0 MiB)"
        " of 400.0 MiB: may not fit, 0 B free"
    )


def test_with_room_for_all_of_it_the_program_fits(measured):
    _, text = measured("600MiB", collective=True)
    assert text == (
        "peak 64.0 MiB reserved + 100.0 MiB context + 290.0 MiB~ NCCL (2.0 MiB to 386.0 MiB)"
        " of 600.0 MiB: fits, 146.0 MiB free"
    )


def test_without_a_collective_there_is_no_communicator(measured):
    device, text = measured("400MiB", collective=False)
    assert sizes(device) == (0, 0, 0)
    assert text == "peak 64.0 MiB reserved + 100.0 MiB context of 400.0 MiB: fits, 236.0 MiB free"
