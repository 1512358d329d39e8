"""A memory snapshot of 1,000,000 events with 40 frames each: seconds and memory of commands."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.timing import arguments, heading, row
from pytorch_memlab.simulation.allocator.caching_allocator import CachingAllocator
from pytorch_memlab.simulation.allocator.driver import SimulatedDriver

EVENTS = 1_000_000
DEPTH = 40
PLACES = 20_000
SECONDS = 20.0
GIB = 2.0
COMMANDS = (
    ("peak", ()),
    ("replay", ()),
    ("replay", ("--set", "expandable_segments:True", "--gpu", "24GiB")),
    ("timeline", ("-o", "timeline.html")),
)


def write(path: str, events: int = EVENTS) -> None:
    """Write the snapshot of a program that allocates and frees at random.

    As in PyTorch's own snapshots, frames are one object wherever they occur, and an allocation
    shares the list of its frames with its frees.

    Args:
        path: of the file.
        events: how many, at least.
    """
    choose = random.Random(0)
    frames = [
        {"name": f"forward_{n % 97}", "filename": f"/home/me/model_{n % 53}.py", "line": n}
        for n in range(4 * DEPTH * 20)
    ]
    stacks = [choose.sample(frames, DEPTH) for _ in range(PLACES)]
    trace: list[dict[str, Any]] = []
    of_block: dict[int, list[dict[str, Any]]] = {}
    place: list[dict[str, Any]] = []

    def note(action: str, address: int, size: int, stream: int) -> None:
        nonlocal place
        if action == "alloc":
            of_block[address] = place
        now = 1_700_000_000_000_000 + 3 * len(trace)
        trace.append(
            {
                "action": action,
                "addr": address,
                "size": size,
                "stream": stream,
                "time_us": now,
                "compile_context": "N/A",
                "user_metadata": "",
                "frames": of_block.get(address, place),
            }
        )

    allocator = CachingAllocator(SimulatedDriver(80 * 2**30))
    allocator.observe(note)
    living: list[int] = []
    while len(trace) < events:
        if living and choose.random() < len(living) / 4000:
            at = choose.randrange(len(living))
            living[at], living[-1] = living[-1], living[at]
            allocator.free(living.pop())
            continue
        place = list(choose.choice(stacks))
        size = choose.choice((choose.randint(1, 2**20), choose.randint(1, 2**25)))
        living.append(allocator.malloc(size))
    segments = allocator.snapshot()
    for segment in segments:
        for block in segment["blocks"]:
            block["frames"] = of_block.get(block["address"], [])
    snapshot = {
        "segments": segments,
        "device_traces": [trace],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": ""},
    }
    with open(path, "wb") as file:
        pickle.dump(snapshot, file)


def measure(command: list[str], folder: str) -> tuple[float, float]:
    """Seconds that a command takes, and the GiB that it needs at most.

    Args:
        command: and its arguments.
        folder: to run it in.
    """
    begun = time.perf_counter()
    path = {**os.environ, "PYTHONPATH": os.getcwd()}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=folder, env=path)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return time.perf_counter() - begun, usage.ru_maxrss / 2**20


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.pickle"
        # In another process: the memory of this one would count in those that it starts.
        subprocess.run([sys.executable, "-m", "benchmarks.snapshot", str(path)], check=True)
        size = path.stat().st_size / 2**20
        heading(f"A snapshot of {EVENTS:,} events with {DEPTH} frames each: {size:,.0f} MiB")
        for name, options in COMMANDS:
            command = [sys.executable, "-m", "pytorch_memlab", name, str(path), *options]
            seconds, gib = measure(command, folder)
            row(" ".join((name, *options)), seconds, "s", SECONDS)
            row(" ".join((name, *options)), gib, "GiB", GIB)


if __name__ == "__main__":
    if given := arguments(__doc__):
        write(given[0], *map(int, given[1:]))
    else:
        main()
