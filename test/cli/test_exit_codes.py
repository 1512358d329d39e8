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


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize(("status", "code"), [(0, 1), (5, 5)])
def test_a_full_disk_ends_with_1_in_place_of_0_and_the_report(status, code, write, tmp_path):
    full = tmp_path / "full.html"
    full.symlink_to("/dev/full")

    done = run("--gpu", "4GiB", "-o", str(full), write(f"{FILL}raise SystemExit({status})\n"))

    assert done.returncode == code
    assert f"cannot write {full}: No space left on device\n" in done.stderr
    assert done.stdout.startswith("peak 2.00 GiB on cuda:0")


FORK = "fork = os.fork()\nif not fork:\n    os._exit(4)\nos.waitpid(fork, 0)\n"


@pytest.mark.parametrize(
    ("options", "status", "code"),
    [((), 0, 0), ((), 5, 5), (["--max-peak", "1MiB"], 0, 3), (["--max-peak", "1MiB"], 5, 5)],
)
def test_a_program_that_ends_its_process_at_once_has_a_report(options, status, code, write):
    text = f"import os\n{FORK}{FILL}os._exit({status})\n"

    done = run("--gpu", "4GiB", *options, write(text))

    assert done.returncode == code
    assert done.stdout.startswith("peak 2.00 GiB on cuda:0, 50% of 4.00 GiB (simulated)\n")
    assert done.stdout.count("peak 2.00 GiB on") == 1
    assert ("more than --max-peak 1MiB\n" in done.stderr) == (code == 3)


def test_an_exit_handler_that_ends_the_process_at_once(write):
    done = run("--gpu", "4GiB", write(f"import atexit, os\natexit.register(os._exit, 6)\n{FILL}"))

    assert done.returncode == 6
    assert done.stdout.startswith("peak 2.00 GiB on cuda:0")


@pytest.mark.parametrize("status", [0, 3])
def test_the_memory_of_threads_counts_after_an_exit_too(status, write):
    text = f"""
        import sys, threading, time

        def work():
            time.sleep(0.2)
            {FILL.splitlines()[0]}
            {FILL.splitlines()[1]}

        threading.Thread(target=work).start()
        sys.exit({status})
    """

    done = run("--gpu", "4GiB", write(text))

    assert done.returncode == status
    assert done.stdout.startswith("peak 2.00 GiB on cuda:0")
