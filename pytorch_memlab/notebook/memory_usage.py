"""``%imu_start``: after every command one line on host memory, time and processors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .cell_formats import memory_usage_line
from .cell_measurement import CellMeasurement, stop_everywhere
from .cpu_load import CpuLoad, CpuLoadMeter
from .perf import PerfStat

if TYPE_CHECKING:
    from .cell_events import Cell
    from .cell_reading import CellReading

_KIND = "%imu_start"


class _Processors:
    """The processors over each open cell: their load, and an event that ``perf stat`` counts."""

    def __init__(self, event: str | None) -> None:
        self._event = event
        self._loads: list[CpuLoadMeter] = []
        self._perf: PerfStat | None = None
        self.load = CpuLoad(0.0, 0.0)
        """Over the cell that ended last."""

    def cell_began(self, cell: Cell, /) -> None:
        """Begin to follow them."""
        self._loads.append(CpuLoadMeter())
        if self._event is not None and self._perf is None:
            self._perf = PerfStat(self._event)

    def cell_ended(self, cell: Cell, result: Any, /) -> None:
        """Take the load."""
        if self._loads:
            self.load = self._loads.pop().stop()

    def counted(self) -> str | None:
        """The sentence of ``perf`` on the outermost cell; None if that still runs."""
        if self._perf is None or self._loads:
            return None
        perf, self._perf = self._perf, None
        return perf.stop()

    def stop(self) -> None:
        """Follow them no more."""
        while self._loads:
            self._loads.pop().stop()
        self.counted()


class MemoryUsageLogger:
    """Prints a line after every cell.

    ``used`` is resident memory now less that at the last report; ``peaked`` is the peak of the cell
    less its end. Events of ``perf stat`` are counted only where it is installed.
    """

    def __init__(self, perf: str | None = None) -> None:
        event = perf if perf is not None and PerfStat.is_installed() else None
        self._processors = _Processors(event)
        self._measurement = CellMeasurement(
            self._print,
            kind=_KIND,
            gc_collect=False,
            empty_cache=False,
            companions=[self._processors],
        )
        self._resident: int | None = None

    def start(self) -> None:
        """Report from now on, on the running cell too."""
        self._measurement.start()

    def _print(self, reading: CellReading) -> None:
        host = reading.host
        before = host.used - host.consumed if self._resident is None else self._resident
        self._resident = host.used
        counted = self._processors.counted()
        print(memory_usage_line(reading, host.used - before, self._processors.load))
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
    MemoryUsageLogger(perf).start()


def stop_watching_memory() -> None:
    """Report no more; again has no effect."""
    stop_everywhere(_KIND)
