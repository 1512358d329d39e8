"""``IPyGPULogger``: after every cell, how much memory it took and for how long it ran."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, NamedTuple

from .._common.quoted import quoted
from ..errors import UsageError
from ..gpu_mem import preload_pytorch
from .cell_meter import CellMeter
from .cells import current_shell
from .readings import last_cell

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell
    from typing_extensions import Self

    from .readings import CellReading, Usage

_MB = 2**20


class MemoryData(NamedTuple):
    """Memory of one kind over a cell, in MB.

    Args:
        used_delta: that the cell consumed.
        peaked_delta: that it needed above what it consumed.
        used_total: in use when it ended.
    """

    used_delta: int
    peaked_delta: int
    used_total: int


class TimeData(NamedTuple):
    """Time of a cell.

    Args:
        time_delta: seconds.
    """

    time_delta: float


class Data(NamedTuple):
    """What the last cell took: MB of general memory (the process') and of the GPU, and seconds."""

    gen_mem_used_delta: int
    gen_mem_peaked: int
    gen_mem_used: int
    gpu_mem_used_delta: int
    gpu_mem_peaked: int
    gpu_mem_used: int
    time_delta: float

    @property
    def cpu(self) -> MemoryData:
        """The three numbers of the process."""
        return MemoryData(self.gen_mem_used_delta, self.gen_mem_peaked, self.gen_mem_used)

    @property
    def gpu(self) -> MemoryData:
        """The three numbers of the GPU."""
        return MemoryData(self.gpu_mem_used_delta, self.gpu_mem_peaked, self.gpu_mem_used)

    @property
    def time(self) -> TimeData:
        """The seconds."""
        return TimeData(self.time_delta)


class IPyGPULogger:
    """Prints after every cell what it took; no thread watches, and nothing is added to its time.

    ``Consumed`` is what a cell took and kept, ``Peaked`` what it needed on top of that for a while,
    ``Used Total`` what is in use now. Of the process (``Gen``) all three are resident memory. Of
    the current GPU ``Consumed`` and ``Peaked`` are bytes that the program allocated, ``Used Total``
    is memory of the whole card, whoever took it. Peaks of the GPU are the allocator's own, those
    of the process the kernel's on Linux; elsewhere they are sampled every 5 ms. MB are 2**20 bytes.
    ``Gen`` contains the tensors of simulated GPUs: they are in the memory of the process.

    Args:
        compact: whether a report has one line.
        gc_collect: whether garbage is collected before memory is read, so that reference cycles
            do not count; off to see them. A cell without a statement is not kept waiting for it.

    Raises:
        UsageError: one is neither True nor False.
    """

    def __init__(self, compact: bool = False, gc_collect: bool = True) -> None:
        for name, value in (("compact", compact), ("gc_collect", gc_collect)):
            if not isinstance(value, bool):
                raise UsageError(f"{name} is True or False, not {quoted(value)}: {name}=True")
        self.compact = compact
        self.gc_collect = gc_collect
        self._meter = CellMeter(self._print, gc_collect=gc_collect)

    def start(self) -> Self:
        """Report from now on, on the running cell too; again has no effect.

        A logger that would print the same after every cell ends: ``IPyGPULogger().start()`` in a
        cell that is run again takes the place of the one before.

        Returns:
            itself.

        Raises:
            UsageError: this is not IPython.
        """
        shell = current_shell()
        preload_pytorch()
        running = _running.setdefault(shell, [])
        for other in running.copy():
            if other is not self and other._prints_like(self):
                other.stop()
        if self not in running:
            running.append(self)
        self._meter.start()
        return self

    def stop(self) -> None:
        """Report no more; again has no effect."""
        self._meter.stop()
        for running in _running.values():
            if self in running:
                running.remove(self)

    @property
    def reading(self) -> CellReading:
        """What the last cell took, in bytes."""
        return self._meter.last

    @property
    def data(self) -> Data:
        """What the last cell took, in MB; zeros before a cell has ended."""
        last = self._meter.last
        return Data(*_megabytes(last.host), *_megabytes(last.gpu), last.seconds)

    def __repr__(self) -> str:
        """How it was made, whether it reports, and what the last cell took."""
        made = f"compact={self.compact}, gc_collect={self.gc_collect}"
        state = "on" if any(self in running for running in _running.values()) else "off"
        return f"<{type(self).__name__}({made}): {state}{last_cell(self._meter.last)}>"

    def _prints_like(self, other: IPyGPULogger) -> bool:
        made = (self.compact, self.gc_collect)
        return type(self) is type(other) and made == (other.compact, other.gc_collect)

    def _print(self, reading: CellReading) -> None:
        print(_compact_text(reading) if self.compact else _table_text(reading))


_running: weakref.WeakKeyDictionary[InteractiveShell, list[IPyGPULogger]] = (
    weakref.WeakKeyDictionary()
)


def _megabytes(usage: Usage) -> tuple[int, int, int]:
    return round(usage.consumed / _MB), round(usage.above_end / _MB), round(usage.used / _MB)


def _table_text(reading: CellReading) -> str:
    lines = [f"RAM: Consumed Peaked  Used Total in {reading.seconds:0.3f}s (In [{reading.number}])"]
    for label, usage in (("Gen", reading.host), ("GPU", reading.gpu)):
        consumed, peaked, used = _megabytes(usage)
        lines.append(f"{label}:    {consumed:5.0f}  {peaked:5.0f}    {used:5.0f} MB")
    return "\n".join(lines)


def _compact_text(reading: CellReading) -> str:
    parts = [
        f"{label}: {'/'.join(str(number) for number in _megabytes(usage))} MB"
        for label, usage in (("Gen", reading.host), ("GPU", reading.gpu))
    ]
    parts.append(f"{reading.seconds:0.3f}s")
    parts.append(f"In [{reading.number}] (Consumed/Peaked/Used Total)")
    return " | ".join(parts)
