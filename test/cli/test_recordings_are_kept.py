"""A run loses nothing that it recorded: no file of an older run, and not the row that failed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pytorch_memlab.cli.main import main

SCRIPT = """\
import torch


def take(mib):
    return torch.empty(mib << 20, dtype=torch.uint8, device="cuda")


kept = take(4)
"""
FAILS = f"{SCRIPT}more = take(100)\n"
FAILED = '5!     return torch.empty(mib << 20, dtype=torch.uint8, device="cuda")'
MARK = f"{FAILED}  # out of memory: asked for 100.0 MiB"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs a script with options."""
    monkeypatch.chdir(tmp_path)

    def run(script: str, *options: str) -> int:
        Path("p.py").write_text(script)
        return main(["run", "--gpu", "64MiB", "-f", "take", *options, "p.py"])

    return run


@pytest.mark.parametrize("name", ["p.json", "p.pickle", "P.PKL"])
def test_the_recording_of_an_older_run_is_kept(name, run, capsys) -> None:
    assert run(SCRIPT, "-o", name) == 0
    first = Path(name).read_bytes()
    capsys.readouterr()
    assert run("raise SystemExit('ran')", "-o", name) == 2
    assert capsys.readouterr().err == (
        f"pytorch-memlab run: error: {name} is there already: --force (force=True) overwrites it, "
        "and {pid} in the name gives every run its own file\n"
    )
    assert Path(name).read_bytes() == first
    assert run(SCRIPT.replace("take(4)", "take(5)"), "--force", "-o", name) == 0
    assert Path(name).read_bytes() != first


def test_a_snapshot_that_came_during_the_run_is_kept(run, capsys) -> None:
    script = f"{SCRIPT}open('p.pickle', 'w').write('of another process')\n"
    assert run(script, "-o", "p.pickle") == 0
    assert Path("p.pickle").read_text() == "of another process"
    (beside,) = Path().glob("p.*.pickle")
    assert f"memory history written to {beside}: " in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a.html", "a.svg", "a.txt", "a.csv"])
def test_what_can_be_made_again_is_overwritten(name, run) -> None:
    if name == "a.svg":
        pytest.importorskip("matplotlib")
    run(SCRIPT, "-o", "p.pickle")
    command = "peak" if name in ("a.txt", "a.csv") else "timeline"
    Path(name).write_text("old")
    assert main([command, "-o", name, "p.pickle"]) == 0
    assert Path(name).read_text() != "old"


def test_a_saved_profile_keeps_the_mark_of_the_row_that_failed(run, monkeypatch, capsys) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        with pytest.raises(torch.OutOfMemoryError):
            run(FAILS, "-o", "p{rank}.json")
    assert main(["merge", "p0.json", "p1.json", "-o", "all.json"]) == 0
    for name in ("p0.json", "all.json"):
        capsys.readouterr()
        assert main(["show", "-c", "peak", name]) == 0
        assert MARK in capsys.readouterr().out
    assert main(["show", "-o", "page.html", "p0.json"]) == 0
    assert "out of memory: asked for 100.0 MiB" in Path("page.html").read_text()
