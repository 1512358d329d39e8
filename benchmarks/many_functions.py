"""CPU time of ``run`` with a program of many functions, beyond that of the program itself."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.timing import arguments, heading, row

FUNCTIONS = 25_000
_RUN = ("-m", "pytorch_memlab", "run")


def source(functions: int) -> str:
    """A program that keeps a tensor, and calls so many functions of one line once each."""
    defined = "".join(f"def f{number}():\n    return {number}\n\n" for number in range(functions))
    called = "".join(f"f{number}()\n" for number in range(functions))
    return f'import torch\nx = torch.ones(1000, device="cuda")\n{defined}{called}'


def cpu_seconds(*arguments: str) -> float:
    """User and system time of ``python`` with these arguments."""
    before = os.times()
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
    after = os.times()
    return (
        after.children_user - before.children_user + after.children_system - before.children_system
    )


def main() -> None:
    heading(f"run, {FUNCTIONS:,} functions of one line")
    with tempfile.TemporaryDirectory() as folder:
        many, none = Path(folder, "many.py"), Path(folder, "none.py")
        many.write_text(source(FUNCTIONS))
        none.write_text(source(0))
        nothing = cpu_seconds(*_RUN, str(none))
        measured = cpu_seconds(*_RUN, str(many))
    row("imports, simulation and report of no function", nothing, "s")
    row("all else: reading the source, tracing and the report", measured - nothing, "s")


if __name__ == "__main__":
    arguments(__doc__)
    main()
