"""A verdict says so where the GPU's size held the memory down."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytorch_memlab import load
from pytorch_memlab.cli.main import main

SCRIPT = """\
import torch

first = torch.empty(40 << 20, dtype=torch.uint8, device="cuda")
del first
second = torch.empty(70 << 20, dtype=torch.uint8, device="cuda")
"""
FITS = "fits, after 1 retry that emptied the cache"
ROOM = "; 110.0 MiB where there is room"


@pytest.fixture
def _history_is_asked_for() -> None:
    """Blind too, no history is recorded beside that of the file."""


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)


def test_run_counts_the_retries_and_knows_what_a_gpu_with_room_takes_by_the_history(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = ["run", "--gpu", "100MiB"]
    assert main([*run, "--history", "-o", "p.json", "train.py"]) == 0
    verdict = f"peak 70.0 MiB reserved of 100.0 MiB: {FITS}{ROOM}"
    assert verdict in " ".join(capsys.readouterr().err.split())
    assert load("p.json").recorded().devices[0].retries == 1
    assert main(["show", "p.json"]) == 0
    assert verdict in " ".join(capsys.readouterr().out.split())
    assert main([*run, "train.py"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"peak 70.0 MiB reserved of 100.0 MiB: {FITS} ##" in out


def test_a_run_with_room_has_no_retry(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--gpu", "111MiB", "train.py"]) == 0
    assert "reserved of 111.0 MiB: fits, 1.0 MiB free\n" in capsys.readouterr().out


@pytest.mark.knows_simulation("fit simulates GPUs, also where there are real ones")
def test_fit_says_so_of_each_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--gpu", "100MiB,111MiB", "train.py"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f" 100MiB: {FITS}{ROOM} " in out
    assert " 111MiB: " not in out
