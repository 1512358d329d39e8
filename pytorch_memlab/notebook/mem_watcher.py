"""``MemWatcher``: after every cell one line on the host's memory, with its numbers at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .cell_meter import CellMeter
from .readings import last_cell

if TYPE_CHECKING:
    from .readings import CellReading

_MIB = 2**20


class Measurements(NamedTuple):
    """What the last cell took; memory in MiB.

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
        self._meter = CellMeter(self._print, gc_collect=False, empty_cache=False)

    def start_watching_memory(self) -> None:
        """Report from now on, on the running cell too; again has no effect.

        Another one that runs ends: one line for each cell is enough.

        Raises:
            UsageError: this is not IPython.
        """
        self._meter.start()
        while _running and _running[-1] is not self:
            _running.pop()._meter.stop()
        _running[:] = [self]

    def stop_watching_memory(self) -> None:
        """Report no more; again has no effect."""
        self._meter.stop()
        if self in _running:
            _running.remove(self)

    @property
    def measurements(self) -> Measurements:
        """What the last cell took; zeros before a cell has ended."""
        last = self._meter.last
        host = last.host
        return Measurements(
            host.consumed / _MIB, last.seconds, host.above_end / _MIB, host.used / _MIB
        )

    def __repr__(self) -> str:
        """Whether it reports, and what the last cell took."""
        state = "on" if self in _running else "off"
        return f"<{type(self).__name__}: {state}{last_cell(self._meter.last)}>"

    def _print(self, reading: CellReading) -> None:
        taken = self.measurements
        print(
            f"In [{reading.number}] used {taken.memory_delta:.3f} MiB RAM "
            f"in {taken.time_delta:.3f}s, peaked {taken.memory_peak:.3f} MiB above current, "
            f"total RAM usage {taken.memory_usage:.3f} MiB"
        )


_running: list[MemWatcher] = []
"""The one that reports, if any."""
