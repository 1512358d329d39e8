"""Tables whose standard output is closed, full, or a pipe without a reader."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.python_process import run_python

from pytorch_memlab import LineProfiler

RUN = """\
import torch
def f():
    return torch.zeros(1024, device="cuda")
f()
"""
DECORATED = """\
from pytorch_memlab import profile
@profile
def f():
    return 1
f()
"""
NOT_WRITTEN = "cannot write the memory tables to standard output: "
FULL = Path("/dev/full")


@pytest.fixture(params=["run", "decorator"])
def command(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    script = tmp_path / "script.py"
    if request.param == "decorator":
        script.write_text(DECORATED)
        return [str(script)]
    script.write_text(RUN)
    return ["-m", "pytorch_memlab", "run", "--gpu", "24GiB", str(script)]


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Lines on standard error, but for what a run tells before its script."""
    return [line for line in done.stderr.splitlines() if "simulating" not in line]


def test_closed(command: list[str]) -> None:
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, *command]
    done = subprocess.run(closed, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, said(done)) == (0, [f"{NOT_WRITTEN}it is closed"])


@pytest.mark.skipif(not FULL.exists(), reason="the system has no /dev/full")
def test_full(command: list[str]) -> None:
    with FULL.open("w") as full:
        done = run_python(command, stdout=full)
    ours, *pythons = said(done)
    assert ours == f"{NOT_WRITTEN}No space left on device"
    assert "Traceback" not in done.stderr
    assert pythons[-1] == "OSError: [Errno 28] No space left on device"
    assert done.returncode == 120  # as Python itself when it cannot flush


def test_a_pipe_that_nobody_reads(command: list[str]) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    done = run_python(command, stdout=writes)
    os.close(writes)
    assert (done.returncode, said(done)) == (0, [])


def test_tables_that_the_program_prints_go_nowhere_as_prints_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def f() -> int:
        return 1

    with LineProfiler(f) as profiler:
        f()
    monkeypatch.setattr(sys, "stdout", None)
    profiler.print_stats()
    profiler.display()
