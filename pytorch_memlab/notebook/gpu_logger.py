"""``IPyGPULogger``: after every cell, its memory and its time."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .._common.text.quoted import quoted
from ..errors import UsageError
from ..gpu_mem import preload_pytorch
from ..profiles.cells import CellReading
from ..render.cell_reports import gpu_logger_line, gpu_logger_table, kept_megabytes, last_cell
from .cell_measurement import CellMeasurement
from .shell import current_shell

if TYPE_CHECKING:
    from typing import Self


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
    """The last cell: MB of general memory, resident in the process, and of the GPU; seconds."""

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
    """Prints after every cell its memory and its time; no thread runs, and no time is added.

    ``Consumed`` is what a cell took and kept, ``Peaked`` what it needed on top of that for a while,
    ``Used Total`` what is in use now. Of the process (``Gen``) all three are resident memory. Of
    the current GPU ``Consumed`` and ``Peaked`` are bytes that the program allocated, ``Used Total``
    is memory of the whole GPU, all processes included, without what PyTorch's allocator keeps for
    later. Peaks of the GPU are the allocator's own, those of the process the kernel's on Linux;
    elsewhere they are sampled every 5 ms. MB are 2**20 bytes. ``Gen`` contains the tensors of
    simulated GPUs, which are in the memory of the process; a line says so once.

    Args:
        compact: makes a report one line.
        gc_collect: collects garbage before memory is read, so that reference cycles do not
            count; False shows them. A cell without a statement is not kept waiting for it.

    Raises:
        UsageError: one is neither True nor False.
    """

    def __init__(self, compact: bool = False, gc_collect: bool = True) -> None:
        for name, value in (("compact", compact), ("gc_collect", gc_collect)):
            if not isinstance(value, bool):
                raise UsageError(f"{name} is True or False, not {quoted(value)}: {name}=True")
        self.compact = compact
        self.gc_collect = gc_collect
        self._measurement = CellMeasurement(
            self._print, kind=(type(self), compact, gc_collect), gc_collect=gc_collect, host="Gen"
        )

    def start(self) -> Self:
        """Report from now on, on the running cell too; again has no effect.

        A logger that would print the same after every cell ends: ``IPyGPULogger().start()`` in a
        cell that is run again takes the place of the one before.

        Returns:
            itself.

        Raises:
            UsageError: this is not IPython.
        """
        current_shell()
        preload_pytorch()
        self._measurement.start()
        return self

    def stop(self) -> None:
        """Report no more; again has no effect."""
        self._measurement.stop()

    @property
    def reading(self) -> CellReading:
        """The last cell, in bytes and seconds."""
        return self._measurement.last

    @property
    def data(self) -> Data:
        """The last cell, in MB and seconds; zeros before one has ended."""
        last = self._measurement.last
        return Data(*kept_megabytes(last.host), *kept_megabytes(last.gpu), last.seconds)

    def __repr__(self) -> str:
        """Its options, its state, and the last cell."""
        made = f"compact={self.compact}, gc_collect={self.gc_collect}"
        state = "on" if self._measurement.is_on else "off"
        return f"<{type(self).__name__}({made}): {state}{last_cell(self._measurement.last)}>"

    def _print(self, reading: CellReading) -> None:
        print(gpu_logger_line(reading) if self.compact else gpu_logger_table(reading))
