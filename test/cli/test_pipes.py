"""Every command whose standard output is a pipe without a reader, as after ``| head``."""

from __future__ import annotations

import os

import pytest
from support.python_process import run_python

from pytorch_memlab.cli.main import main

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
    ],
    ids=" ".join,
)
def test_a_closed_pipe_is_no_error(arguments, files):
    reads, writes = os.pipe()
    os.close(reads)
    done = run_python(["-m", "pytorch_memlab", *arguments], stdout=writes, cwd=files)
    os.close(writes)
    assert (done.stderr, done.returncode) == ("", 0)
