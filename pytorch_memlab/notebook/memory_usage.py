"""``%imu_start``: after every command one line on host memory, time and processors."""

from __future__ import annotations

import threading
from typing import Any

from ..profiles.cells import CellReading, CpuLoad
from ..render.cell_reports import memory_usage_line
from .cell_events import Cell
from .cell_measurement import CellMeasurement, stop_everywhere
from .perf import PerfStat

_KIND = "%imu_start"

SAMPLING_SECONDS = 0.1

_SHORTEST = 0.05
"""Seconds over which a load can be measured: the kernel counts in steps of 10 ms."""

_Times = list[tuple[float, float]]


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


def _times() -> _Times:
    """Seconds that each processor was busy, and that it was there at all, since the start."""
    import psutil

    times = []
    for cpu in psutil.cpu_times(percpu=True):
        # A guest's time is part of the user's already.
        named = {name: value for name, value in cpu._asdict().items() if "guest" not in name}
        total = sum(named.values())
        times.append((total - named["idle"] - named.get("iowait", 0.0), total))
    return times


def _loads(before: _Times, after: _Times) -> list[float]:
    """Load of each processor between two readings; none of too short a time."""
    loads = []
    for (busy_before, all_before), (busy, total) in zip(before, after, strict=True):
        elapsed = total - all_before
        if elapsed < _SHORTEST:
            return []
        loads.append(min(100.0, max(0.0, 100.0 * (busy - busy_before) / elapsed)))
    return loads


class _MemoryUsageLogger(CellMeasurement):
    """Prints a line after every cell, with the load of the processors and what ``perf`` counts."""

    def __init__(self, event: str | None) -> None:
        super().__init__(self._print, kind=_KIND, gc_collect=False, empty_cache=False)
        self._event = event
        self._loads: list[CpuLoadMeter] = []
        self._load = CpuLoad(0.0, 0.0)
        self._perf: PerfStat | None = None
        self._resident: int | None = None

    def cell_began(self, cell: Cell, /) -> None:
        super().cell_began(cell)
        self._loads.append(CpuLoadMeter())
        if self._event is not None and self._perf is None:
            self._perf = PerfStat(self._event)

    def cell_ended(self, cell: Cell, result: Any, /) -> None:
        if self._loads:
            self._load = self._loads.pop().stop()
        super().cell_ended(cell, result)

    def stop(self, *, report: bool = False) -> None:
        try:
            super().stop(report=report)
        finally:
            while self._loads:
                self._loads.pop().stop()
            self._counted()

    def _counted(self) -> str | None:
        """The sentence of ``perf`` on the outermost cell; None if that still runs."""
        if self._perf is None or self._loads:
            return None
        perf, self._perf = self._perf, None
        return perf.stop()

    def _print(self, reading: CellReading) -> None:
        host = reading.host
        before = host.used - host.consumed if self._resident is None else self._resident
        self._resident = host.used
        counted = self._counted()
        print(memory_usage_line(reading, host.used - before, self._load))
        if counted is not None:
            print(counted)


def start_watching_memory(perf: str | None = None) -> None:
    """Report on every cell from now on; what ran so far is stopped first.

    Args:
        perf: event that ``perf stat`` counts during a cell, None for none.

    Raises:
        UsageError: this is not IPython.
    """
    stop_watching_memory()
    _MemoryUsageLogger(perf if PerfStat.is_installed() else None).start()


def stop_watching_memory() -> None:
    """Report no more; again has no effect."""
    stop_everywhere(_KIND)
