"""The cost of one line event in time and memory, and the original's."""

from __future__ import annotations

import gc
import json
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

from benchmarks import original
from benchmarks.gpus import CountedGPU, RealGPU, StandInGPU
from benchmarks.timing import (
    MICROSECONDS,
    arguments,
    heading,
    in_own_process,
    least,
    row,
    row_at_least,
)

LINES = 11
"""Line events of one turn of the loops below, that of the ``for`` included."""

REPEATS = 3


def idle_lines(turns: int, _: Callable[[], object]) -> None:
    """Lines that allocate nothing."""
    for x in range(turns):
        a = x
        b = a
        c = b
        d = c
        e = d
        f = e
        g = f
        h = g
        i = h
        x = i


def allocating_lines(turns: int, allocate: Callable[[], object]) -> None:
    """Lines that allocate, but for that of the loop."""
    for _ in range(turns):
        allocate()
        allocate()
        allocate()
        allocate()
        allocate()
        allocate()
        allocate()
        allocate()
        allocate()
        allocate()


def measure(gpu: CountedGPU, events: int) -> dict[str, float]:
    """Figures of the ``pytorch_memlab`` that is first on the path.

    Args:
        gpu: installed.
        events: how many to measure.

    Returns:
        Seconds above reading and resetting for an idle and an allocating line, all seconds for
        both, and bytes of memory, each per line event.
    """
    turns = events // LINES
    idle, idle_above = _line_seconds(gpu, idle_lines, turns)
    mixed, mixed_above = _line_seconds(gpu, allocating_lines, turns)
    share = LINES - 1
    return {
        "idle": idle,
        "idle_above": idle_above,
        "allocating": (mixed * LINES - idle) / share,
        "allocating_above": (mixed_above * LINES - idle_above) / share,
        "memory": _memory(idle_lines, turns),
    }


def _line_seconds(
    gpu: CountedGPU, function: Callable[..., None], turns: int
) -> tuple[float, float]:
    """Seconds that profiling adds to a line event: all, and those above reading and resetting."""
    allocate = gpu.allocation()
    plain = least(lambda: function(turns, allocate), REPEATS)
    gpu.read()
    gpu.reads = gpu.resets = 0
    profiled = min(_profiled_seconds(function, turns, allocate) for _ in range(REPEATS))
    events = turns * LINES
    reads, resets = gpu.reads / (events * REPEATS), gpu.resets / (events * REPEATS)
    read, reset = _prices(gpu, allocate if function is allocating_lines else None)
    each = (profiled - plain) / events
    return each, each - reads * read - resets * reset


def _profiled_seconds(
    function: Callable[..., None], turns: int, allocate: Callable[[], object]
) -> float:
    from pytorch_memlab import LineProfiler

    gc.collect()
    with LineProfiler(function):
        begun = time.perf_counter()
        function(turns, allocate)
        return time.perf_counter() - begun


def _prices(gpu: CountedGPU, allocate: Callable[[], object] | None) -> tuple[float, float]:
    """Seconds of one reading and of one reset, after an allocation if there is one."""
    calls = 20_000

    def loop(*steps: Callable[[], object] | None) -> float:
        todo = [step for step in steps if step]

        def work() -> None:
            for _ in range(calls):
                for step in todo:
                    step()

        return least(work, REPEATS) / calls

    bare = loop(allocate)
    gpu.read()
    read = loop(allocate, gpu.read) - bare
    reset = loop(allocate, gpu.read, gpu.reset_peaks) - bare - read
    return read, reset


def _memory(function: Callable[..., None], turns: int) -> float:
    """Bytes that the profiler holds after many line events, for each of them."""
    from pytorch_memlab import LineProfiler

    with LineProfiler(function):
        function(2, int)
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        function(turns, int)
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return (after - before) / (turns * LINES)


def report(title: str, gpu: str, targets: bool) -> None:
    """Measure both packages, each in its own process, and print the figures.

    Args:
        title: said above them.
        gpu: ``stand-in`` or ``real``.
        targets: whether they are figures that have a target.
    """
    heading(title)
    ours = in_own_process("benchmarks.line_event", gpu, "110000", ".")
    folder = original.fetch()
    theirs = in_own_process("benchmarks.line_event", gpu, "5500", str(folder)) if folder else {}
    limits = {"idle_above": 3.0, "allocating_above": 8.0} if targets else {}
    for key, what in {
        "idle_above": "line that allocates nothing, above reading and resetting",
        "allocating_above": "line that allocates, above reading and resetting",
        "idle": "line that allocates nothing, all that profiling adds",
        "allocating": "line that allocates, all that profiling adds",
    }.items():
        row(what, ours[key] * MICROSECONDS, "µs", limits.get(key))
        if theirs:
            row("    the original's", theirs[key] * MICROSECONDS, "µs")
            ratio = theirs[key] / ours[key]
            if key in limits:
                row_at_least("    times less", ratio, "x", 8)
            else:
                row("    times less", ratio, "x")
    row("memory per line event", ours["memory"], "bytes", 0.5 if targets else None)
    if theirs:
        row("    the original's", theirs["memory"], "bytes")


def _measured(kind: str, events: str, path: str) -> dict[str, Any]:
    gpu = StandInGPU() if kind == "stand-in" else RealGPU()
    gpu.install()
    sys.path.insert(0, path)
    return measure(gpu, int(events))


if __name__ == "__main__":
    if given := arguments(__doc__):
        print(json.dumps(_measured(*given)))
    else:
        report("A line event, on stand-in counters", "stand-in", targets=True)
