"""The texts of all reports on a cell of a notebook."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from .._common.text.prose_size import signed
from ..profiles.cells import CellReading, CpuLoad, Usage

MIB: Final = 2**20

_NARROWEST = 10  # a column of the experiment's table
_ORDER = "(Consumed/Peaked/Used Total)"


def kept_megabytes(usage: Usage) -> tuple[int, int, int]:
    """Consumed, peaked above the end, and used in total, in MB of 2**20 bytes."""
    return round(usage.consumed / MIB), round(usage.above_end / MIB), round(usage.used / MIB)


def needed_megabytes(usage: Usage) -> tuple[int, int, int]:
    """Consumed, peaked above the start and the end, and used in total, in MB of 2**20 bytes."""
    return round(usage.consumed / MIB), round(usage.overhead / MIB), round(usage.used / MIB)


def gpu_logger_table(reading: CellReading) -> str:
    """The report of ``IPyGPULogger``."""
    lines = [f"RAM: Consumed Peaked  Used Total in {reading.seconds:0.3f}s (In [{reading.number}])"]
    for label, usage in (("Gen", reading.host), ("GPU", reading.gpu)):
        consumed, peaked, used = kept_megabytes(usage)
        lines.append(f"{label}:    {consumed:5.0f}  {peaked:5.0f}    {used:5.0f} MB")
    return "\n".join(lines)


def gpu_logger_line(reading: CellReading) -> str:
    """The report of ``IPyGPULogger(compact=True)``."""
    return " | ".join(
        [
            _compact("Gen", kept_megabytes(reading.host)),
            _compact("GPU", kept_megabytes(reading.gpu)),
            f"{reading.seconds:0.3f}s",
            f"In [{reading.number}] {_ORDER}",
        ]
    )


def experiment_table(reading: CellReading, *, with_gpu: bool) -> str:
    """The report of ``exp.cl``."""
    rows = _experiment_rows(reading, with_gpu=with_gpu)
    columns = list(zip(*([f"{mbs:,}" for mbs in row] for row in rows.values()), strict=True))
    widths = [max(_NARROWEST, *map(len, column)) for column in columns]
    headings = ("△Consumed", "△Peaked", "Used Total")
    # The unit stands behind the last number, and its heading above both.
    spread = zip(headings, (widths[0], widths[1], widths[2] + len(" MB")), strict=True)
    heading = " ".join(f"{text:>{width}}" for text, width in spread)
    lines = [f"･ RAM: {heading} | Exec time {_clock_with_milliseconds(reading.seconds)}"]
    for label, cells in zip(rows, zip(*columns, strict=True), strict=True):
        numbers = " ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        lines.append(f"･ {label}: {numbers} MB |")
    return "\n".join(lines)


def experiment_line(reading: CellReading, *, with_gpu: bool) -> str:
    """The report of ``exp.cl`` with ``cl_compact=True``."""
    rows = _experiment_rows(reading, with_gpu=with_gpu)
    parts = [_compact(label, row) for label, row in rows.items()]
    return " | ".join([*parts, f"Time {_clock_with_milliseconds(reading.seconds)}", _ORDER])


def mem_watcher_line(reading: CellReading) -> str:
    """The report of ``MemWatcher``."""
    host = reading.host
    return (
        f"In [{reading.number}] used {host.consumed / MIB:.3f} MiB RAM "
        f"in {reading.seconds:.3f}s, peaked {host.above_end / MIB:.3f} MiB above current, "
        f"total RAM usage {host.used / MIB:.3f} MiB"
    )


def memory_usage_line(reading: CellReading, since_last: int, load: CpuLoad) -> str:
    """The report of ``%imu_start``, with the bytes more than at its last line."""
    host = reading.host
    return (
        f"In [{reading.number}] used {_one_decimal(since_last)} MiB RAM "
        f"in {reading.seconds:0.2f}s "
        f"(system mean cpu {load.mean:0.0f}%, single max cpu {load.highest:0.0f}%), "
        f"peaked {_one_decimal(host.above_end)} MiB above final usage, "
        f"current RAM usage now {_one_decimal(host.used)} MiB"
    )


def last_cell(reading: CellReading) -> str:
    """The end of a logger's ``repr``: the last cell; empty before a cell has ended.

    >>> from pytorch_memlab.profiles.cells import CellReading, Usage
    >>> last_cell(CellReading(3, 0.5, Usage(2**20, 0, 0), Usage(-512, 0, 0)))
    ', In [3] took +1.0 MiB on the host and -512 B on the GPU in 0.500 s'
    """
    if not reading.number:
        return ""
    host, gpu = (signed(usage.consumed, "+") for usage in (reading.host, reading.gpu))
    seconds = f"{reading.seconds:.3f} s"
    return f", In [{reading.number}] took {host} on the host and {gpu} on the GPU in {seconds}"


def _experiment_rows(reading: CellReading, *, with_gpu: bool) -> dict[str, tuple[int, int, int]]:
    rows = {"CPU": needed_megabytes(reading.host)}
    return rows | {"GPU": needed_megabytes(reading.gpu)} if with_gpu else rows


def _compact(label: str, megabytes: Iterable[int]) -> str:
    return f"{label}: {'/'.join(map(str, megabytes))} MB"


def _clock_with_milliseconds(seconds: float) -> str:
    """Hours, minutes and seconds with three decimals."""
    minutes, milliseconds = divmod(round(seconds * 1000), 60_000)
    return f"{minutes // 60}:{minutes % 60:02d}:{milliseconds / 1000:06.3f}"


def _one_decimal(nbytes: int) -> str:
    """A number of bytes in MiB, with one decimal and no minus sign before a zero."""
    return f"{round(nbytes / MIB, 1) + 0.0:0.1f}"
