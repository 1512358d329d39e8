"""The one measurement of cells, each level of nested ones by itself; reports are made from it."""

from __future__ import annotations

import ast
import gc
import sys
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from .._common.process.host_scope import HostScope
from ..profiles.cells import NO_CELL, NOTHING, CellReading, Usage
from ..simulation.inspect import active
from .cell_events import Cell, CellEvents, CellListener, all_listeners, cell_events
from .shell import current_shell

if TYPE_CHECKING:
    from ..scopes import PeakScope


@dataclass(slots=True)
class _OpenCell:
    """Windows over a cell that runs."""

    cell: Cell
    host: HostScope
    gpu: PeakScope | None  # of the GPU that was current
    index: int | None  # of that GPU
    began: float  # seconds, when measuring was ready


class CellMeasurement:
    """Measures the cells of the shell that it is started in, and reports each when it has ended."""

    def __init__(
        self,
        report: Callable[[CellReading], None],
        *,
        kind: Hashable = None,  # one that starts ends others of its kind
        gc_collect: bool = True,  # before memory is read, but for a cell without a statement
        empty_cache: bool = True,  # of CUDA's allocator, before memory is read
        host: str = "RAM",  # what reports call the memory of the process
    ) -> None:
        self._send = report
        self._kind = kind
        self._gc_collect = gc_collect
        self._empty_cache = empty_cache
        self._host = host
        self._has_told_of_gpus = False
        self._open: list[_OpenCell] = []
        self._events: CellEvents | None = None
        self.last: CellReading = NO_CELL

    @property
    def is_on(self) -> bool:
        return self._events is not None

    def start(self) -> None:
        """Measure from now on, the running cell included; again has no effect."""
        if self._events is None:
            events = cell_events(current_shell())
            _stop_kind(self._kind, events.listeners)
            self._events = events
            self._tidy_up()
            events.add(self)

    def stop(self, *, report: bool = False) -> None:
        """Measure no more, and report on the running cell as it is now if asked to."""
        if self._events is None:
            return
        self._events.remove(self)
        self._events = None
        try:
            if report and self._open:
                self._read(self._open[-1], perf_counter())
        finally:
            while self._open:
                self._close(self._open.pop())

    def cell_began(self, cell: Cell, /) -> None:
        if self._open:
            self._tidy_up()
        index = _current_gpu()
        gpu = None if index is None else _peak_scope(index)
        host = HostScope()
        self._open.append(_OpenCell(cell, host, gpu, index, 0.0))
        if gpu is not None:
            gpu.start()
        host.start()
        self._open[-1].began = perf_counter()

    def cell_ended(self, cell: Cell, result: Any, /) -> None:
        if not any(measurement.cell is cell for measurement in self._open):
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
        host, used, consumed = open_cell.host, open_cell.host.used, open_cell.host.used_delta
        usage = Usage(consumed, host.peak - (used - consumed), used)
        seconds = ended - open_cell.began
        self.last = CellReading(cell.number, seconds, usage, _gpu_usage(open_cell))
        self._send(self.last)
        if not self._has_told_of_gpus and _host_holds_gpus():
            self._has_told_of_gpus = True
            print(f"{self._host} contains the tensors of the simulated GPUs")

    def _tidy_up(self) -> None:
        if self._gc_collect:
            gc.collect()
        if self._empty_cache and _current_gpu() is not None:
            from ..devices.allocations import empty_caches

            empty_caches()

    def _close(self, open_cell: _OpenCell) -> None:
        open_cell.host.stop()
        if open_cell.gpu is not None:
            open_cell.gpu.stop()


def _host_holds_gpus() -> bool:
    """True if tensors of simulated GPUs are in the memory of this process."""
    machine = active.machine
    return machine is not None and not machine.is_dry_run and any(True for _ in machine.living())


def stop_everywhere(kind: Hashable) -> None:
    """Stop the measurements of a kind, in all shells; without any nothing happens."""
    _stop_kind(kind, all_listeners())


def _stop_kind(kind: Hashable, listeners: Iterable[CellListener]) -> None:
    if kind is not None:
        for listener in listeners:
            if isinstance(listener, CellMeasurement) and listener._kind == kind:
                listener.stop()


def _current_gpu() -> int | None:
    """Index of the current GPU; None without any, and before the program has loaded torch."""
    if "torch" not in sys.modules:
        return None
    from ..devices.allocations import current_gpu

    return current_gpu()


def _peak_scope(index: int) -> PeakScope:
    from ..scopes import PeakScope

    return PeakScope(index)


def _gpu_usage(open_cell: _OpenCell) -> Usage:
    index = _current_gpu()
    if index is None:
        return NOTHING
    from ..devices import get_device
    from ..devices.allocations import cached_memory, driver_memory

    free, total = driver_memory(index)
    used = total - free - cached_memory(index)
    scope = open_cell.gpu
    if scope is None or index != open_cell.index or scope.device is not get_device(index):
        # Another GPU, or another simulation, is current than when the cell began.
        return Usage(0, 0, used)
    consumed = scope.used_delta
    return Usage(consumed, scope.peak - (scope.used - consumed), used)


def _may_do_something(source: str) -> bool:
    """True if a cell holds more than comments, ``pass`` and constants."""
    try:
        statements = ast.parse(source).body
    except (SyntaxError, ValueError):
        return True
    return not all(
        isinstance(statement, ast.Pass)
        or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for statement in statements
    )
