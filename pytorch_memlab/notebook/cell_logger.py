"""``exp.cl``: a report on each cell of an experiment."""

from __future__ import annotations

import random
import sys
from typing import NamedTuple

from .._common.text.quoted import quoted
from ..errors import UsageError
from ..profiles.cells import CellReading, Usage
from ..render.cell_reports import experiment_line, experiment_table
from .cell_events import Cell
from .cell_measurement import CellMeasurement

_HIGHEST = 2**32 - 1
"""Seed that NumPy takes."""


class CellLoggerMemory(NamedTuple):
    """Memory of one kind over a cell, in bytes."""

    used_delta: int  # used when the cell ended less what was used when it began
    peaked_delta: int  # needed for a while above what was used before and is used after
    used_total: int  # in use when it ended; of a GPU that of the whole GPU


class CellLoggerTime(NamedTuple):
    """Time of a cell."""

    time_delta: float  # seconds


class CellLoggerData(NamedTuple):
    """The memory and the time of a cell."""

    cpu: CellLoggerMemory  # resident memory of the process
    gpu: CellLoggerMemory  # memory of the current GPU; zeros with the backend ``cpu``
    time: CellLoggerTime  # of the cell


class CellLogger(CellMeasurement):
    """Prints a report after every cell, for as long as its experiment lasts."""

    # With a seed, all random numbers are seeded before every cell; while it runs, cuDNN is
    # deterministic.

    def __init__(self, *, follows_gpu: bool, compact: bool, gc_collect: bool, seed: int) -> None:
        if not isinstance(seed, int) or not 0 <= seed <= _HIGHEST:
            raise UsageError(
                f"a seed is an int from 0, for none, to {_HIGHEST}, not {quoted(seed)}"
            )
        super().__init__(self._print, gc_collect=gc_collect, empty_cache=follows_gpu, host="CPU")
        self._follows_gpu = follows_gpu
        self._compact = compact
        self._seed = seed
        self._cudnn: tuple[bool, bool] | None = None

    def stop(self, *, report: bool = True) -> None:
        """Report no more, after the running cell as far as it is; again has no effect."""
        try:
            super().stop(report=report)
        finally:
            if self._cudnn is not None:
                cudnn = sys.modules["torch"].backends.cudnn
                (cudnn.deterministic, cudnn.benchmark), self._cudnn = self._cudnn, None

    @property
    def data(self) -> CellLoggerData:
        """The last cell, in bytes and seconds; zeros before one has ended."""
        gpu = _memory(self.last.gpu) if self._follows_gpu else CellLoggerMemory(0, 0, 0)
        return CellLoggerData(_memory(self.last.host), gpu, CellLoggerTime(self.last.seconds))

    def cell_began(self, cell: Cell, /) -> None:
        super().cell_began(cell)
        if not self._seed:
            return
        random.seed(self._seed)
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            numpy.random.seed(self._seed)
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.manual_seed(self._seed)  # of every CUDA device too
            cudnn = torch.backends.cudnn
            if self._cudnn is None:
                self._cudnn = (cudnn.deterministic, cudnn.benchmark)
            cudnn.deterministic, cudnn.benchmark = True, False

    def _print(self, reading: CellReading) -> None:
        text_of = experiment_line if self._compact else experiment_table
        print(text_of(reading, with_gpu=self._follows_gpu))


def _memory(usage: Usage) -> CellLoggerMemory:
    return CellLoggerMemory(usage.consumed, usage.overhead, usage.used)
