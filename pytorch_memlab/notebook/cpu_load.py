"""The load of the processors over a stretch of code."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

SAMPLING_SECONDS = 0.1

_SHORTEST = 0.05
"""Seconds over which a load can be measured: the kernel counts in steps of 10 ms."""


class CpuLoad(NamedTuple):
    """Load in percent; 0 of less than 50 ms, for which the kernel's counters are too coarse."""

    mean: float  # of all processors over the whole time
    highest: float  # of the busiest processor over the busiest sample


class CpuLoadMeter:
    """Follows the load of the system's processors; a thread wakes ten times a second for it."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._first = self._latest = _times()
        self._highest = 0.0
        self._thread.start()

    def stop(self) -> CpuLoad:
        """End; the load since the beginning."""
        self._stop.set()
        self._thread.join()
        loads = _loads(self._first, self._look())
        return CpuLoad(sum(loads) / len(loads) if loads else 0.0, self._highest)

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLING_SECONDS):
            self._look()

    def _look(self) -> _Times:
        times = _times()
        loads = _loads(self._latest, times)
        if loads:
            self._highest = max(self._highest, *loads)
            self._latest = times
        return times


_Times = list[tuple[float, float]]


def _times() -> _Times:
    """Seconds that each processor was busy, and that it was there at all, since the start."""
    import psutil

    return [_busy_and_all(one) for one in psutil.cpu_times(percpu=True)]


def _busy_and_all(times: Any) -> tuple[float, float]:
    # A guest's time is part of the user's already.
    named = times._asdict()
    total = sum(value for name, value in named.items() if not name.startswith("guest"))
    return total - named["idle"] - named.get("iowait", 0.0), total


def _loads(before: _Times, after: _Times) -> list[float]:
    """Load of each processor between two readings; none of too short a time."""
    loads = []
    for (busy_before, all_before), (busy, total) in zip(before, after, strict=True):
        elapsed = total - all_before
        if elapsed < _SHORTEST:
            return []
        loads.append(min(100.0, max(0.0, 100.0 * (busy - busy_before) / elapsed)))
    return loads
