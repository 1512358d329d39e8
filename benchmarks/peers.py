"""The same two programs plainly, under this package and under its peers, in CPU time.

Each run is a process; what it takes above the plain one, imports left out, is the cost of a step.
Peers that are not installed are named and left out: ``make bench`` installs them into
``.venv-peers``. There is no GPU in this: peers that read CUDA's counters get stand-ins for them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks import original
from benchmarks.timing import MILLISECONDS, arguments, heading, row

TURNS = 3


def mlp(device: str) -> tuple[Callable[[], object], nn.Module, torch.optim.Optimizer]:
    """A training step of many small ops: two linear layers and Adam."""
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    x, y = torch.randn(32, 64, device=device), torch.randint(0, 10, (32,), device=device)

    def step() -> None:
        hidden = model(x)
        loss = nn.functional.cross_entropy(hidden, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step, model, optimizer


def transformer(device: str) -> tuple[Callable[[], object], nn.Module, torch.optim.Optimizer]:
    """A training step of few large ops: four layers of 256, on 4 x 128 tokens."""
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(4, 128, 256, device=device)

    def step() -> None:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step, model, optimizer


PROGRAMS: dict[str, tuple[Any, int]] = {"mlp": (mlp, 300), "transformer": (transformer, 10)}
"""What makes the step of a program, and how many steps are measured."""


def run(program: str, tool: str, device: str) -> None:
    """Run a program, under a tool that is called from within; print the seconds of a step.

    Those of a tool that is started around this are in it too.
    """
    torch.set_num_threads(1)
    if tool == "0.3.2":
        from benchmarks.gpus import StandInGPU

        StandInGPU().install()
        sys.path.insert(0, str(original.FOLDER))
    make, steps = PROGRAMS[program]
    step, model, optimizer = make(device)
    step = _under(tool, step, model, optimizer)
    step()
    begun = time.process_time()
    for _ in range(steps):
        step()
    spent = time.process_time() - begun
    Path(os.environ["PEERS_RESULT"]).write_text(str(spent / steps))


def _under(
    tool: str, step: Any, model: nn.Module, optimizer: torch.optim.Optimizer
) -> Callable[[], object]:
    """The step as a tool has it that is called from within."""
    if tool == "0.3.2":
        from pytorch_memlab import LineProfiler as Original

        profiler: Any = Original(step)
        profiler.enable()
    elif tool == "line_profiler":
        from line_profiler import LineProfiler

        profiled: Callable[[], object] = LineProfiler()(step)
        return profiled
    elif tool == "history":
        torch.cuda.memory._record_memory_history()
    elif tool == "tracker":
        from torch.distributed._tools.mem_tracker import MemTracker

        tracker: Any = MemTracker()
        tracker.track_external(model, optimizer)

        def tracked() -> None:
            tracker.reset_mod_stats()
            with tracker:
                step()

        return tracked
    return step  # type: ignore[no-any-return]


def _tools(folder: Path) -> dict[str, tuple[str, tuple[str, ...], str, str]]:
    """By name: what must be importable, what goes before the program, tool within, and device."""
    ours = ("-m", "pytorch_memlab", "run", "--force", "-o", str(folder / "profile.json"))
    return {
        "plain": ("torch", (), "plain", "cpu"),
        "pytorch-memlab run, simulated": ("torch", ours, "plain", "cuda"),
        "pytorch-memlab run --dry-run": ("torch", (*ours, "--dry-run"), "plain", "cuda"),
        "torch's memory history, on ours": (
            *("torch", ("-m", "benchmarks.peers", "simulated"), "history", "cuda"),
        ),
        "simulate() alone": ("torch", ("-m", "benchmarks.peers", "simulated"), "plain", "cuda"),
        "pytorch_memlab 0.3.2, stand-in": ("", (), "0.3.2", "cpu"),
        "MemTracker": ("torch", (), "tracker", "cpu"),
        "line_profiler": ("line_profiler", (), "line_profiler", "cpu"),
        "memray": (
            *("memray", ("-m", "memray", "run", "-q", "-f", "-o", str(folder / "memray.bin"))),
            *("plain", "cpu"),
        ),
        "scalene": (
            "scalene",
            ("-m", "scalene", "run", "--outfile", str(folder / "scalene.json")),
            *("plain", "cpu"),
        ),
    }


def measured(
    before: tuple[str, ...], program: str, tool: str, device: str, folder: Path
) -> float | None:
    """The least seconds of a step in some runs; None if a tool did not run to its end."""
    script, result = folder / "program.py", folder / "result"
    script.write_text("import sys\nfrom benchmarks.peers import run\nrun(*sys.argv[1:])\n")
    paths = [os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "PEERS_RESULT": str(result),
        "PYTHONPATH": os.pathsep.join(paths),
    }
    words = (str(script), "---") if "scalene" in before else (str(script),)
    times = []
    for _ in range(TURNS):
        result.unlink(missing_ok=True)
        command = [sys.executable, *before, *words, program, tool, device]
        done = subprocess.run(command, check=False, capture_output=True, env=environment, text=True)
        if not result.exists():
            last = (done.stderr or done.stdout).strip().splitlines()
            print(f"    did not run to its end: {last[-1] if last else done.returncode}")
            return None
        times.append(float(result.read_text()))
    return min(times)


def main() -> None:
    for program, (make, _) in PROGRAMS.items():
        heading(f"{make.__doc__.splitlines()[0]} Processor time of a step, least of {TURNS}")
        plain = None
        with tempfile.TemporaryDirectory() as name:
            for tool, (package, before, within, device) in _tools(Path(name)).items():
                is_there = find_spec(package) is not None if package else original.fetch()
                if not is_there:
                    print(f"  {tool} is not installed: left out")
                    continue
                seconds = measured(before, program, within, device, Path(name))
                if seconds is None:
                    print(f"  {tool} is left out")
                    continue
                plain = plain or seconds
                row(tool, seconds * MILLISECONDS, "ms")
                row("    of the plain run's", seconds / plain, "x")


def simulated(script: str, *words: str) -> None:
    """Run a program within ``simulate()`` alone."""
    import runpy

    from pytorch_memlab import simulate

    sys.argv = [script, *words]
    with simulate("h100"):
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    match arguments(__doc__):
        case ["simulated", *words]:
            simulated(*words)
        case _:
            main()
