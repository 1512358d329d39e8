"""How busy the processors were over a stretch of code."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

SAMPLING_SECONDS = 0.1


class CpuLoad(NamedTuple):
    """Load in percent.

    Args:
        mean: of all processors over the whole time.
        highest: of the busiest processor over the busiest sample.
    """

    mean: float
    highest: float


class CpuLoadMeter:
    """Follows the load of the system's processors; a thread wakes ten times a second for it."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._first = self._latest = _times()
        self._highest = 0.0
        self._thread.start()

    def stop(self) -> CpuLoad:
        """End, and tell the load since the beginning."""
        self._stop.set()
        self._thread.join()
        self._look()
        loads = _loads(self._first, self._latest)
        return CpuLoad(sum(loads) / len(loads) if loads else 0.0, self._highest)

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLING_SECONDS):
            self._look()

    def _look(self) -> None:
        times = _times()
        self._highest = max([self._highest, *_loads(self._latest, times)])
        self._latest = times


def _times() -> list[tuple[float, float]]:
    """Seconds that each processor was busy, and that it was there at all, since the start."""
    import psutil

    return [_busy_and_all(one) for one in psutil.cpu_times(percpu=True)]


def _busy_and_all(times: Any) -> tuple[float, float]:
    # A guest's time is part of the user's already.
    named = times._asdict()
    total = sum(value for name, value in named.items() if not name.startswith("guest"))
    return total - named["idle"] - named.get("iowait", 0.0), total


def _loads(before: list[tuple[float, float]], after: list[tuple[float, float]]) -> list[float]:
    loads = []
    for (busy_before, all_before), (busy, total) in zip(before, after, strict=True):
        elapsed = total - all_before
        # The kernel counts in steps of 10 ms: of less it says nothing.
        loads.append(100.0 * (busy - busy_before) / elapsed if elapsed > 0 else 0.0)
    return [min(100.0, max(0.0, load)) for load in loads]
