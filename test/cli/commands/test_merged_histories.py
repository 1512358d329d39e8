"""Peaks and histories of a merged profile: each has the name of its rank."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

from pytorch_memlab import load
from pytorch_memlab.cli.main import main
from pytorch_memlab.errors import HistoryError

SCRIPT = """\
import os

import torch

MIB = 2**20
wide = torch.zeros((1 + int(os.environ["RANK"])) * 4 * MIB, dtype=torch.uint8, device="cuda")
for _ in range(3):
    wide = torch.cat([wide, wide])[: len(wide)].clone()
"""
HEADS = [
    "rank0 cuda:0: 16.0 MiB in use at the peak, 20.0 MiB reserved",
    "rank1 cuda:0: 32.0 MiB in use at the peak, 36.0 MiB reserved",
]


@pytest.fixture
def merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """The merged profile of two ranks of different sizes, with their histories."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        main(["run", "--gpu", "1GiB", "--history", "-o", "p{rank}.json", "train.py"])
    assert main(["merge", "p0.json", "p1.json", "-o", "all.json"]) == 0
    capsys.readouterr()
    return "all.json"


def heads(text: str) -> list[str]:
    return list(dict.fromkeys(re.findall(r"rank\d cuda:0: [^(]*?(?= \()", text)))


def test_a_peak_names_its_rank(merged: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["peak", merged]) == 0
    assert heads(capsys.readouterr().out) == HEADS
    held = load(merged).peak_holders("rank1 cuda:0")
    assert repr(held).startswith("<PeakHolders of rank1 cuda:0: 32.0 MiB in ")


def test_files_of_a_peak_name_the_rank(merged: str) -> None:
    names = ["p.html", "p.csv", "p.speedscope.json", "p.collapsed.txt"]
    assert main(["peak", *(part for name in names for part in ("-o", name)), merged]) == 0
    page = Path("p.html").read_text()
    assert heads(page) == HEADS
    ids = re.findall(r' id="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    devices = [row["device"] for row in csv.DictReader(Path("p.csv").read_text().splitlines())]
    assert list(dict.fromkeys(devices)) == ["rank0 cuda:0", "rank1 cuda:0"]
    profiles = json.loads(Path("p.speedscope.json").read_text())["profiles"]
    assert [one["name"] for one in profiles] == ["rank0 cuda:0", "rank1 cuda:0"]
    stacks = Path("p.collapsed.txt").read_text().splitlines()
    assert {line.partition(";")[0] for line in stacks} == {"rank0 cuda:0", "rank1 cuda:0"}


def test_every_history_is_kept(merged: str) -> None:
    found = load(merged)
    for rank in ("0", "1"):
        own = load(f"p{rank}.json").history()
        again = found.history(f"rank{rank}")
        assert list(again.devices[0].events) == list(own.devices[0].events)
        assert (again.stacks, again.settings) == (own.stacks, own.settings)
    with pytest.raises(HistoryError, match=r"^the profile has several histories: choose rank0 or"):
        found.history()
    with pytest.raises(HistoryError, match=r"no history of rank2: there is rank0 or rank1$"):
        found.history("rank2")


def test_what_is_merged_once_more_keeps_them(merged: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    main(["run", "--gpu", "1GiB", "--history", "-o", "p2.json", "train.py"])
    assert main(["merge", merged, "p2.json", "-o", "three.json"]) == 0
    assert list(load("three.json").recorded().all_histories()) == ["rank0", "rank1", "rank2"]
    assert load("three.json").peak_holders().peak.name == "rank2 cuda:0"


def test_timeline_and_replay_name_the_rank(merged: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["timeline", "-o", "t.html", merged]) == 0
    page = Path("t.html").read_text()
    assert heads(page) == HEADS
    ids = re.findall(r' id="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    capsys.readouterr()
    assert main(["replay", "--gpu", "32MiB", merged]) == 0
    out = capsys.readouterr().out
    found = re.findall(r"^(rank\d cuda:0): \d+ events|^32MiB .*(yes|no)$", out, re.MULTILINE)
    assert found == [("rank0 cuda:0", ""), ("", "yes"), ("rank1 cuda:0", ""), ("", "no")]


def test_the_page_of_a_merged_profile_draws_each_rank(merged: str) -> None:
    assert main(["show", "-o", "page.html", merged]) == 0
    page = Path("page.html").read_text()
    for part in ("timeline", "peak"):
        found = re.findall(rf'id="memlab-{part}-\d+-title">([^(<]*?) \(', page)
        assert found == HEADS


def test_without_histories_there_is_one_line(
    merged: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in ("0", "1"):
        data = json.loads(Path(f"p{rank}.json").read_text())
        del data["checksum"]
        Path(f"q{rank}.json").write_text(json.dumps({**data, "history": None}))
    main(["merge", "q0.json", "q1.json", "-o", "without.json"])
    capsys.readouterr()
    assert main(["replay", "without.json"]) == 2
    assert capsys.readouterr().err == (
        "pytorch-memlab replay: error: the profile has no history: record it with run --history\n"
    )
