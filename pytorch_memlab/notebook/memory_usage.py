"""``%imu_start``: after every command one line on the host's memory, time and processors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .cell_meter import CellMeter
from .cells import cells_of, current_shell
from .cpu_load import CpuLoadMeter
from .perf import PerfStat

if TYPE_CHECKING:
    from .cells import Cell, Cells
    from .cpu_load import CpuLoad
    from .readings import CellReading

_MIB = 2**20


class MemoryUsageLogger:
    """Prints a line after every cell.

    ``used`` is resident memory now less that at the last report; ``peaked`` what the peak of the
    cell went above its end.

    Args:
        perf: event that ``perf stat`` counts during a cell, such as ``cache-misses``; nothing is
            counted, nor said, where ``perf`` is not installed.
    """

    def __init__(self, perf: str | None = None) -> None:
        self._event = perf if perf is not None and PerfStat.is_installed() else None
        self._meter = CellMeter(self._print, gc_collect=False, empty_cache=False)
        self._cells: Cells | None = None
        self._resident: int | None = None
        self._loads: list[CpuLoadMeter] = []
        self._perfs: list[PerfStat] = []
        self._load: CpuLoad | None = None

    def start(self) -> None:
        """Report from now on, on the running cell too.

        Raises:
            UsageError: this is not IPython.
        """
        self._cells = cells_of(current_shell())
        # Listeners end in the reverse order: the load is known when the meter reports.
        self._meter.start()
        self._cells.add(self)

    def stop(self) -> None:
        """Report no more; again has no effect."""
        self._meter.stop()
        if self._cells is not None:
            self._cells.remove(self)
            self._cells = None
        while self._loads:
            self._loads.pop().stop()
        while self._perfs:
            self._perfs.pop().stop()

    def cell_began(self, cell: Cell, /) -> None:
        """Begin to follow the processors."""
        self._loads.append(CpuLoadMeter())
        if self._event is not None and not self._perfs:
            self._perfs.append(PerfStat(self._event))

    def cell_ended(self, cell: Cell, result: Any, /) -> None:
        """Take the processors' numbers."""
        if self._loads:
            self._load = self._loads.pop().stop()

    def _print(self, reading: CellReading) -> None:
        host = reading.host
        before = host.used - host.consumed if self._resident is None else self._resident
        self._resident = host.used
        counted = self._perfs.pop().stop() if self._perfs and not self._loads else None
        load = self._load
        mean, highest = (0.0, 0.0) if load is None else load
        print(
            f"In [{reading.number}] used {_mib(host.used - before)} MiB RAM "
            f"in {reading.seconds:0.2f}s "
            f"(system mean cpu {mean:0.0f}%, single max cpu {highest:0.0f}%), "
            f"peaked {_mib(host.above_end)} MiB above final usage, "
            f"current RAM usage now {_mib(host.used)} MiB"
        )
        if counted is not None:
            print(counted)


def _mib(nbytes: int) -> str:
    """A number of bytes in MiB, with one decimal and no minus sign before a zero."""
    return f"{round(nbytes / _MIB, 1) + 0.0:0.1f}"


_running: list[MemoryUsageLogger] = []


def start_watching_memory(perf: str | None = None) -> None:
    """Report on every cell from now on; what ran so far is stopped first.

    Args:
        perf: event that ``perf stat`` counts during a cell, None for none.

    Raises:
        UsageError: this is not IPython.
    """
    stop_watching_memory()
    logger = MemoryUsageLogger(perf)
    logger.start()
    _running.append(logger)


def stop_watching_memory() -> None:
    """Report no more; again has no effect."""
    while _running:
        _running.pop().stop()
