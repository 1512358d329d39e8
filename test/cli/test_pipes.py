"""Commands whose standard output is a pipe without a reader, as after ``| head``, or full."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.python_process import run_python

from pytorch_memlab.cli.main import main

FULL = Path("/dev/full")

SCRIPT = """
    import torch

    def make():
        return torch.empty(2**20, device="cuda")

    kept = make()
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with a saved profile and a snapshot."""
    folder = tmp_path_factory.mktemp("pipes")
    script = folder / "script.py"
    script.write_text(SCRIPT.replace("\n    ", "\n"))
    made = [folder / "saved.json", folder / "saved.pickle"]
    main(["run", "--gpu", "1GiB", *(f"--output={file}" for file in made), str(script)])
    return folder


@pytest.mark.parametrize(
    "arguments",
    [
        ["top", "saved.json"],
        ["peak", "saved.pickle"],
        ["replay", "saved.pickle"],
        ["run", "--help"],
        ["--version"],
        ["completion", "bash"],
    ],
    ids=" ".join,
)
def test_a_closed_pipe_is_no_error(arguments, files):
    reads, writes = os.pipe()
    os.close(reads)
    done = run_python(["-m", "pytorch_memlab", *arguments], stdout=writes, cwd=files)
    os.close(writes)
    assert (done.stderr, done.returncode) == ("", 0)


@pytest.mark.skipif(not FULL.exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize("arguments", [["--version"], ["completion", "bash"]], ids=" ".join)
def test_a_full_disk_is_said_in_a_line(arguments):
    with FULL.open("w") as full:
        done = run_python(["-m", "pytorch_memlab", *arguments], stdout=full)
    assert done.returncode == 120
    reason = "cannot write the memory tables to standard output: No space left on device"
    assert done.stderr.splitlines()[0] == reason
    assert "Traceback" not in done.stderr
