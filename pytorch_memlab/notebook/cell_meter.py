"""Measures every cell, each level of nested ones by itself."""

from __future__ import annotations

import ast
import gc
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..devices import get_device
from ..devices.driver_memory import current_gpu, driver_memory, empty_caches
from ..scopes import HostScope, PeakScope
from .cells import cells_of, current_shell
from .readings import NO_CELL, NOTHING, CellReading, Usage

if TYPE_CHECKING:
    from collections.abc import Callable

    from .cells import Cell, Cells


@dataclass(slots=True)
class _OpenCell:
    """Windows over a cell that runs.

    Args:
        cell: that runs.
        host: over the host's memory.
        gpu: over the current GPU's, None without one.
        index: of that GPU.
        began: seconds, when measuring was ready.
    """

    cell: Cell
    host: HostScope
    gpu: PeakScope | None
    index: int | None
    began: float


class CellMeter:
    """Measures the cells of the shell that it is started in.

    Args:
        report: called with the reading of every cell when it has ended.
        gc_collect: whether garbage is collected before memory is read. A cell that holds no
            statement makes none, and is not kept waiting for it.
        empty_cache: whether the CUDA allocator's cache is emptied before memory is read.
    """

    def __init__(
        self,
        report: Callable[[CellReading], None],
        *,
        gc_collect: bool = True,
        empty_cache: bool = True,
    ) -> None:
        self._send = report
        self._gc_collect = gc_collect
        self._empty_cache = empty_cache
        self._open: list[_OpenCell] = []
        self._cells: Cells | None = None
        self.last: CellReading = NO_CELL

    def start(self) -> None:
        """Measure from now on, the running cell included; again has no effect.

        Raises:
            UsageError: this is not IPython.
        """
        if self._cells is None:
            self._cells = cells_of(current_shell())
            self._tidy_up()
            self._cells.add(self)

    def stop(self, *, report: bool = False) -> None:
        """Measure no more; again has no effect.

        Args:
            report: whether the running cell is reported on as it is now.
        """
        if self._cells is not None:
            self._cells.remove(self)
            self._cells = None
            if report and self._open:
                self._read(self._open[-1], perf_counter())
            while self._open:
                self._close(self._open.pop())

    def cell_began(self, cell: Cell, /) -> None:
        """Open windows over a cell."""
        if self._open:
            self._tidy_up()
        index = current_gpu()
        gpu = None if index is None else PeakScope(index)
        host = HostScope()
        self._open.append(_OpenCell(cell, host, gpu, index, 0.0))
        if gpu is not None:
            gpu.start()
        host.start()
        self._open[-1].began = perf_counter()

    def cell_ended(self, cell: Cell, result: Any, /) -> None:
        """Read the windows of a cell, and report."""
        if not any(one.cell is cell for one in self._open):
            return
        open_cell = self._open.pop()
        while open_cell.cell is not cell:
            self._close(open_cell)
            open_cell = self._open.pop()
        try:
            self._read(open_cell, cell.ended)
        finally:
            self._close(open_cell)

    def _read(self, open_cell: _OpenCell, ended: float) -> None:
        cell = open_cell.cell
        if not cell.is_whole or _may_do_something(cell.source):
            self._tidy_up()
        host, gpu = _host_usage(open_cell.host), _gpu_usage(open_cell)
        self.last = CellReading(cell.number, ended - open_cell.began, host, gpu)
        self._send(self.last)

    def _tidy_up(self) -> None:
        if self._gc_collect:
            gc.collect()
        if self._empty_cache:
            empty_caches()

    def _close(self, open_cell: _OpenCell) -> None:
        open_cell.host.stop()
        if open_cell.gpu is not None:
            open_cell.gpu.stop()


def _host_usage(scope: HostScope) -> Usage:
    used, peak = scope.used, scope.peak
    start = used - scope.used_delta
    return Usage(used - start, peak - start, used)


def _gpu_usage(open_cell: _OpenCell) -> Usage:
    index = current_gpu()
    if index is None:
        return NOTHING
    free, total = driver_memory(index)
    scope = open_cell.gpu
    if scope is None or index != open_cell.index or scope.device is not get_device(index):
        # Another GPU, or another simulation, is current than when the cell began.
        return Usage(0, 0, total - free)
    consumed = scope.used_delta
    return Usage(consumed, scope.peak - (scope.used - consumed), total - free)


def _may_do_something(source: str) -> bool:
    """Whether a cell holds more than comments, ``pass`` and constants."""
    try:
        statements = ast.parse(source).body
    except (SyntaxError, ValueError):
        return True
    return not all(
        isinstance(one, ast.Pass)
        or (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
        for one in statements
    )
