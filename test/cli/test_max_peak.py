"""``run --max-peak``: exit code 3, from the command line, pyproject.toml, and beside errors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.python_process import run_python

from pytorch_memlab.cli.main import main

ROOT = Path(__file__).parents[2]

FILLS = """\
import torch


def keep():
    return torch.empty(20 << 20, dtype=torch.uint8, device="cuda")


lost = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
del lost
torch.cuda.reset_peak_memory_stats()
kept = keep()
"""

TOLD = "pytorch-memlab: peak 100.0 MiB reserved on cuda:0, more than --max-peak {}\n"


@pytest.mark.parametrize(
    ("size", "code", "told"),
    [
        ("99MiB", 3, TOLD.format("99MiB")),
        ("100MiB", 0, ""),
        ("0", 3, TOLD.format("0")),
    ],
)
@pytest.mark.knows_simulation("the words that name a simulated GPU")
def test_a_run_that_passes_the_limit(size, code, told, write, capsys):
    # The peak is in no profiled line, and the program itself resets it.
    done = main(["run", "--gpu", "1GiB", "--max-peak", size, "-f", "keep", write(FILLS)])

    out, err = capsys.readouterr()
    assert done == code
    assert err.endswith(f"(chosen by --gpu)\n{told}")
    assert "\n  peak 100.0 MiB reserved of 1.00 GiB: fits, 924.0 MiB free\n" in out


def test_the_limit_of_a_project(write, capsys):
    write("[tool.pytorch-memlab]\nmax-peak = '64MiB'\ngpu = '1GiB'\n", "pyproject.toml")

    assert main(["run", "-c", "hits", write(FILLS)]) == 3
    assert main(["run", "-c", "hits", "--max-peak", "1GiB", write(FILLS)]) == 0
    assert capsys.readouterr().err.count(TOLD.format("64MiB")) == 1


@pytest.mark.parametrize("size", ["much", "-1", "20 Gob", ""])
def test_what_is_no_size(size, write, capsys):
    assert main(["run", f"--max-peak={size}", write("print('runs')\n")]) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith(f"error: --max-peak is a size such as 20GiB, not {size!r}\n")


def test_a_size_without_a_unit(write, capsys):
    script = write("print('runs')\n")
    assert main(["run", "--max-peak=20", script]) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("such as 20GiB, not '20' (did you mean 20MiB or 20GiB?)\n")
    assert main(["run", "--max-peak=4096", script]) == 2
    err = capsys.readouterr().err
    assert err.endswith(
        "pytorch-memlab: no verdict on --max-peak 4096: no memory of a GPU was used\n"
    )


@pytest.mark.parametrize(
    ("end", "raised"),
    [
        ("raise SystemExit(7)", 7),
        ("raise SystemExit('why')", "why"),
        ("1 / 0", None),
        ("torch.empty(2 << 30, dtype=torch.uint8, device='cuda')", None),
    ],
)
def test_a_program_that_fails_keeps_its_own_code(end, raised, write, capsys):
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        main(["run", "--gpu", "1GiB", "--max-peak", "1MiB", write(f"{FILLS}{end}\n")])

    assert getattr(caught.value, "code", None) == raised
    assert "--max-peak" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("end", "raised"), [("raise SystemExit", None), ("raise SystemExit(0)", 0)]
)
def test_a_program_that_ends_itself_well(end, raised, write):
    name = write(f"{FILLS}{end}\n")

    assert main(["run", "--gpu", "1GiB", "--max-peak", "1MiB", name]) == 3
    with pytest.raises(SystemExit) as caught:
        main(["run", "--gpu", "1GiB", "--max-peak", "1GiB", name])
    assert caught.value.code == raised


THREAD = """\
import atexit, threading, time, torch

def work():
    time.sleep(0.3)
    torch.empty(50 << 20, dtype=torch.uint8, device="cuda")

atexit.register(print, "handlers run")
threading.Thread(target=work).start()
"""


def test_a_process_ends_with_3_after_its_threads_tables_and_handlers(write):
    done = run_python(
        ["-m", "pytorch_memlab", "run", "--gpu", "1GiB", "--max-peak", "40MiB", write(THREAD)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )

    assert done.returncode == 3
    assert done.stderr.endswith(
        "pytorch-memlab: peak 50.0 MiB reserved on cuda:0, more than --max-peak 40MiB\n"
    )
    assert "handlers run" in done.stdout
    assert "peak 50.0 MiB reserved of 1.00 GiB: fits, 974.0 MiB free" in done.stdout


def test_steps_and_their_limit(write, capsys):
    write(
        "import torch\n"
        "p = torch.nn.Parameter(torch.zeros(1 << 20, device='cuda'))\n"
        "optimizer = torch.optim.Adam([p])\n"
        "while True:\n"
        "    p.sum().backward()\n"
        "    optimizer.step()\n",
        "train.py",
    )

    assert main(["run", "--gpu", "1GiB", "--steps", "2", "--max-peak", "10MiB", "train.py"]) == 3
    assert "more than --max-peak 10MiB" in capsys.readouterr().err
