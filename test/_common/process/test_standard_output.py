"""Tables whose standard output is closed, full, of few characters, or a pipe without a reader."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.python_process import run_python

from pytorch_memlab import LineProfiler
from pytorch_memlab._common.process.standard_output import print_to_stdout

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


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_an_encoding_without_the_characters_of_the_program(
    tmp_path: Path, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "script.py"
    path.write_text("def größe():\n    return 1  # →\n\ngröße()\nprint('done')\n", "utf-8")
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    words = [sys.executable, "-m", "pytorch_memlab", "run", "--all", "--gpu", "24GiB", str(path)]

    done = subprocess.run(words, capture_output=True, check=False)

    assert b"Error" not in done.stderr
    assert done.returncode == 0
    name = "größe".encode(encoding, "replace").decode(encoding)
    out = done.stdout.decode(encoding)
    assert f"## {name}  script.py:1\n" in out
    assert "    return 1  # ?\n" in out


def test_the_program_keeps_its_own_rule_for_what_cannot_be_encoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    print_to_stdout("é\n")
    assert stream.buffer.getvalue() == b"?\n"  # type: ignore[attr-defined]
    assert stream.errors == "strict"


def test_tables_of_a_profiler_on_a_stream_of_few_characters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def größe() -> int:
        return 1  # →

    with LineProfiler(größe) as profiler:
        größe()
    stream = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    profiler.print_stats()
    stream.flush()
    assert b"return 1  # ?" in stream.buffer.getvalue()  # type: ignore[attr-defined]


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
