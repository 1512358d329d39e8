"""``exp.cl``: what each cell of an experiment took."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .cell_meter import CellMeter
from .seeding import CellSeeder

if TYPE_CHECKING:
    from .readings import CellReading, Usage

_MB = 2**20
_NARROWEST = 10  # a column of the report


class CellLoggerMemory(NamedTuple):
    """Memory of one kind over a cell, in bytes.

    Args:
        used_delta: used when the cell ended less what was used when it began.
        peaked_delta: needed for a while above what was used before and is used after.
        used_total: in use when it ended; of a GPU that of the whole card.
    """

    used_delta: int
    peaked_delta: int
    used_total: int


class CellLoggerTime(NamedTuple):
    """Time of a cell.

    Args:
        time_delta: seconds.
    """

    time_delta: float


class CellLoggerData(NamedTuple):
    """What a cell took.

    Args:
        cpu: resident memory of the process.
        gpu: memory of the current GPU; zeros with the backend ``cpu``.
        time: of the cell.
    """

    cpu: CellLoggerMemory
    gpu: CellLoggerMemory
    time: CellLoggerTime


class CellLogger:
    """Prints after every cell what it took, for as long as its experiment lasts.

    Args:
        follows_gpu: whether the current GPU is reported beside the process.
        compact: whether a report has one line.
        gc_collect: whether garbage is collected before memory is read.
        seed: of all random numbers before every cell; 0 to leave them alone.
    """

    def __init__(self, *, follows_gpu: bool, compact: bool, gc_collect: bool, seed: int) -> None:
        self._follows_gpu = follows_gpu
        self._compact = compact
        self._meter = CellMeter(self._print, gc_collect=gc_collect, empty_cache=follows_gpu)
        self._seeder = CellSeeder(seed)

    def start(self) -> None:
        """Report from now on, on the running cell too; again has no effect."""
        self._meter.start()
        self._seeder.start()

    def stop(self, *, report: bool = True) -> None:
        """Report no more; again has no effect.

        Args:
            report: whether the running cell is reported on as far as it is.
        """
        self._meter.stop(report=report)
        self._seeder.stop()

    @property
    def data(self) -> CellLoggerData:
        """What the last cell took, in bytes and seconds; zeros before a cell has ended."""
        last = self._meter.last
        gpu = _memory(last.gpu) if self._follows_gpu else CellLoggerMemory(0, 0, 0)
        return CellLoggerData(_memory(last.host), gpu, CellLoggerTime(last.seconds))

    def _print(self, reading: CellReading) -> None:
        data = self.data
        rows = {"CPU": data.cpu} | ({"GPU": data.gpu} if self._follows_gpu else {})
        print((_compact_text if self._compact else _table_text)(rows, reading.seconds))


def _memory(usage: Usage) -> CellLoggerMemory:
    return CellLoggerMemory(usage.consumed, usage.overhead, usage.used)


def _table_text(rows: dict[str, CellLoggerMemory], seconds: float) -> str:
    columns = list(zip(*([f"{mbs:,}" for mbs in _mbs(row)] for row in rows.values()), strict=True))
    widths = [max(_NARROWEST, *map(len, column)) for column in columns]
    headings = ("△Consumed", "△Peaked", "Used Total")
    # The unit stands behind the last number, and its heading above both.
    spread = zip(headings, (widths[0], widths[1], widths[2] + len(" MB")), strict=True)
    heading = " ".join(f"{text:>{width}}" for text, width in spread)
    lines = [f"･ RAM: {heading} | Exec time {_clock(seconds)}"]
    for label, cells in zip(rows, zip(*columns, strict=True), strict=True):
        numbers = " ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        lines.append(f"･ {label}: {numbers} MB |")
    return "\n".join(lines)


def _compact_text(rows: dict[str, CellLoggerMemory], seconds: float) -> str:
    parts = [f"{label}: {'/'.join(map(str, _mbs(row)))} MB" for label, row in rows.items()]
    return " | ".join([*parts, f"Time {_clock(seconds)}", "(Consumed/Peaked/Used Total)"])


def _mbs(memory: CellLoggerMemory) -> list[int]:
    return [round(nbytes / _MB) for nbytes in memory]


def _clock(seconds: float) -> str:
    milliseconds = round(seconds * 1000)
    minutes, milliseconds = divmod(milliseconds, 60_000)
    return f"{minutes // 60}:{minutes % 60:02d}:{milliseconds / 1000:06.3f}"
