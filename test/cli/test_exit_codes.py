"""Exit codes of the process: those of the program."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.python_process import run_python

ROOT = Path(__file__).parents[2]

FILL = "import torch\nkept = torch.empty(1 << 31, dtype=torch.uint8, device='cuda')\n"


def run(*arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return run_python(["-m", "pytorch_memlab", "run", *arguments], env=environment)


def test_a_program_that_runs_out_of_memory_ends_as_after_any_error(write):
    done = run("--gpu", "1GiB", write(f"import atexit\natexit.register(print, 'bye')\n{FILL}"))

    assert done.returncode == 1
    assert "\nTraceback (most recent call last):\n" in done.stderr
    assert done.stderr.count("torch.OutOfMemoryError: CUDA out of memory.") == 1
    assert done.stdout.endswith("bye\n")


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("except torch.cuda.OutOfMemoryError: pass", 0),
        ("except torch.cuda.OutOfMemoryError: raise SystemExit(7)", 7),
        ("finally: 1 / 0", 1),
    ],
)
def test_a_program_that_handles_it_ends_as_it_will(end, code, write):
    body = "".join(f"    {line}\n" for line in FILL.splitlines())

    assert run("--gpu", "1GiB", write(f"import torch\ntry:\n{body}{end}\n")).returncode == code
