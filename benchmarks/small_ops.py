"""CPU time of a simulation of small ops, where what the simulation itself does is all that counts.

Times are those of the processors (user and system), the least of several rounds: other work on the
machine changes them little.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.timing import MICROSECONDS, MILLISECONDS, arguments, heading, in_own_process, row

ROUNDS = 7


def processor_seconds(work: Callable[[], object], times: int, rounds: int = ROUNDS) -> float:
    """The least processor seconds of some work, done so often in each round."""
    for _ in range(max(times // 10, 3)):
        work()
    best = float("inf")
    for _ in range(rounds):
        begun = time.process_time()
        for _ in range(times):
            work()
        best = min(best, time.process_time() - begun)
    return best / times


def tiny_step(
    device: str, keep: Callable[[torch.Tensor], object] = lambda _loss: None
) -> Callable[[], object]:
    """A training step of two small linear layers; a leak keeps the loss."""
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(32, 64, device=device), torch.randint(0, 10, (32,), device=device)

    def step() -> None:
        loss = functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        keep(loss)
        optimizer.step()

    return step


def linear(device: str) -> Callable[[], object]:
    """A linear layer, forward and backward."""
    layer = nn.Linear(64, 64).to(device)
    x = torch.randn(32, 64, device=device)
    return lambda: layer(x).sum().backward()


def allocation(device: str) -> Callable[[], object]:
    """A tensor that is made, and freed at once."""
    return lambda: torch.empty(1000, device=device)


WORK: dict[str, tuple[Callable[[str], Callable[[], object]], int]] = {
    "tiny_step": (tiny_step, 200),
    "linear": (linear, 300),
    "allocation": (allocation, 3000),
}


def measured(name: str, how: str) -> float:
    """Processor seconds of some work: ``cpu``, ``simulate`` or ``dry``."""
    torch.set_num_threads(1)
    make, times = WORK[name]
    if how == "cpu":
        return processor_seconds(make("cpu"), times)
    from pytorch_memlab.simulation import simulate

    with simulate("h100", compute=how == "simulate"):
        return processor_seconds(make("cuda"), times)


def in_process(name: str, how: str) -> Any:
    """`measured` in another process."""
    return in_own_process("benchmarks.small_ops", name, how)


_PROGRAM = """
import sys
import torch
from benchmarks.small_ops import processor_seconds, tiny_step
torch.set_num_threads(1)

print(processor_seconds(tiny_step("cuda"), int(sys.argv[1])), file=open(sys.argv[2], "w"))
"""

STEPS = 64

_FIRST_STEPS = f"""
import sys
import time
import torch
from benchmarks.small_ops import tiny_step
torch.set_num_threads(1)

kept = []
step = tiny_step("cuda", *([kept.append] if sys.argv[1] == "leak" else ()))
begun = time.process_time()
for _ in range({STEPS}):
    step()
print((time.process_time() - begun) / {STEPS}, file=open(sys.argv[2], "w"))
"""


def under_run(argument: object, *options: str, source: str = _PROGRAM) -> float:
    """Processor seconds of a training step of the tiny MLP under ``run``."""
    with tempfile.TemporaryDirectory() as folder:
        program, result = Path(folder, "program.py"), Path(folder, "result")
        program.write_text(source)
        subprocess.run(
            [
                *(sys.executable, "-m", "pytorch_memlab", "run", *options),
                *(str(program), str(argument), str(result)),
            ],
            env={**os.environ, "PYTHONPATH": os.getcwd()},
            capture_output=True,
            check=True,
        )
        return float(result.read_text())


def main() -> None:
    heading("Small ops, processor time")
    for name, what, scale, unit in (
        ("tiny_step", "a training step of a tiny MLP", MILLISECONDS, "ms"),
        ("linear", "a linear layer, forward and backward", MICROSECONDS, "µs"),
        ("allocation", "a tensor made and freed", MICROSECONDS, "µs"),
    ):
        for how, where in (
            ("cpu", "on the CPU"),
            ("simulate", "under simulate"),
            ("dry", "in a dry run"),
        ):
            row(f"{what}, {where}", in_process(name, how) * scale, unit)
    for options in ((), ("--dry-run",)):
        what = " ".join(("run", *options))
        row(f"a training step of a tiny MLP, {what}", under_run(100, *options) * MILLISECONDS, "ms")
    for argument, which in (("clean", "of a loop"), ("leak", "of one with a leak")):
        seconds = under_run(argument, "--dry-run", "--leaks", source=_FIRST_STEPS)
        what = f"    with --leaks, each of the first {STEPS} steps {which}"
        row(what, seconds * MILLISECONDS, "ms")


if __name__ == "__main__":
    match arguments(__doc__):
        case [name, how]:
            print(measured(name, how))
        case _:
            main()
