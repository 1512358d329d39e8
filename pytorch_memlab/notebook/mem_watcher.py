"""``MemWatcher``: after every cell one line on host memory."""

from __future__ import annotations

from typing import NamedTuple

from ..render.cell_reports import MIB, last_cell, mem_watcher_line
from .cell_measurement import CellMeasurement


class Measurements(NamedTuple):
    """The memory of the last cell in MiB, and its time.

    Args:
        memory_delta: resident memory that the cell took and kept.
        time_delta: seconds that it ran.
        memory_peak: that it needed above what was resident when it ended.
        memory_usage: resident when it ended.
    """

    memory_delta: float
    time_delta: float
    memory_peak: float
    memory_usage: float


class MemWatcher:
    """Prints a line after every cell, from ``start_watching_memory()`` on."""

    def __init__(self) -> None:
        self._measurement = CellMeasurement(
            lambda reading: print(mem_watcher_line(reading)),
            kind=MemWatcher,
            gc_collect=False,
            empty_cache=False,
        )

    def start_watching_memory(self) -> None:
        """Report from now on, on the running cell too; again has no effect.

        Another one that runs ends: one line for each cell is enough.

        Raises:
            UsageError: this is not IPython.
        """
        self._measurement.start()

    def stop_watching_memory(self) -> None:
        """Report no more; again has no effect."""
        self._measurement.stop()

    @property
    def measurements(self) -> Measurements:
        """The memory and the time of the last cell; zeros before a cell has ended."""
        last = self._measurement.last
        host = last.host
        return Measurements(
            host.consumed / MIB, last.seconds, host.above_end / MIB, host.used / MIB
        )

    def __repr__(self) -> str:
        """Its state, and the last cell."""
        state = "on" if self._measurement.is_on else "off"
        return f"<{type(self).__name__}: {state}{last_cell(self._measurement.last)}>"
