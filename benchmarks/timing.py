"""Shared by the benchmarks: clocks, statistics, and the lines that they print."""

from __future__ import annotations

import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

MICROSECONDS = 1e6
MILLISECONDS = 1e3


def seconds(work: Callable[[], object]) -> float:
    """Wall-clock seconds of one run, begun on a collected heap."""
    gc.collect()
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def least(work: Callable[[], object], repeats: int) -> float:
    """The least seconds of several runs: what the work costs when nothing else disturbs."""
    return min(seconds(work) for _ in range(repeats))


def median_ratio(
    work: Callable[[], object], baseline: Callable[[], object], repeats: int
) -> tuple[float, float, float]:
    """The time of some work above a baseline, both run in turns after a warm-up each.

    Args:
        work: what is measured.
        baseline: what it is compared with.
        repeats: turns.

    Returns:
        Median seconds of the work, of the baseline, and the median of the turns' ratios.
    """
    work()
    baseline()
    pairs = [(seconds(work), seconds(baseline)) for _ in range(repeats)]
    works, baselines = zip(*pairs, strict=True)
    ratios = [one / other for one, other in pairs]
    return statistics.median(works), statistics.median(baselines), statistics.median(ratios)


def in_own_process(module: str, *arguments: str) -> Any:
    """Run ``python -m module arguments``.

    Returns:
        What it printed last, read as JSON.
    """
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def arguments(description: str | None) -> list[str]:
    """The arguments of the command line; with ``--help``, the description is all that is done."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(description)
        sys.exit()
    return sys.argv[1:]


def heading(text: str) -> None:
    """Begin a benchmark's part of the output."""
    print(f"\n{text}")


def row(what: str, measured: float, unit: str, at_most: float | None = None) -> None:
    """Print one figure, and its target where it has one."""
    _print(what, measured, unit, at_most, "at most", at_most is None or measured <= at_most)


def row_at_least(what: str, measured: float, unit: str, target: float) -> None:
    """Print one figure that is to be large."""
    _print(what, measured, unit, target, "at least", measured >= target)


def _print(
    what: str, measured: float, unit: str, target: float | None, bound: str, reached: bool
) -> None:
    line = f"  {what:<62} {measured:>10.2f} {unit:<6}"
    if target is not None:
        line += f"  target: {bound} {target:g} {unit}".rstrip() + ("" if reached else "  MISSED")
    print(line.rstrip(), flush=True)
