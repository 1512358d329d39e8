"""The one hub for the events of IPython: the open cells and their listeners."""

from __future__ import annotations

import sys
import weakref
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from .shell import is_running_a_cell, last_cell_number

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


@dataclass(slots=True, eq=False)
class Cell:
    """A cell that runs, or has run."""

    number: int  # of IPython's prompt; that of the cell around it for %%capture and its like
    source: str  # as the user typed it; empty if the cell ran already when listening began
    is_whole: bool  # the hub saw it begin
    ended: float = 0.0  # seconds of time.perf_counter, before any listener ran


class CellListener(Protocol):
    """Listens to cells. A listener that fails costs one line on standard error, and no cell."""

    def cell_began(self, cell: Cell, /) -> None:
        """A cell begins, or listening begins in the middle of it."""

    def cell_ended(self, cell: Cell, result: Any, /) -> None:
        """A cell has ended; ``result`` is IPython's ``ExecutionResult``."""


class CellEvents:
    """The open cells of one shell, innermost last: ``%%time`` and its like open one in another."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._listeners: list[CellListener] = []
        self._open: list[Cell] = []

    @property
    def listeners(self) -> tuple[CellListener, ...]:
        """All listeners, in the order in which they were added."""
        return tuple(self._listeners)

    def add(self, listener: CellListener) -> None:
        """Add a listener; again has no effect. A running cell begins for it at once."""
        if listener in self._listeners:
            return
        if not self._listeners:
            running = Cell(last_cell_number(self._shell), "", is_whole=False)
            self._open = [running] if is_running_a_cell() else []
            self._shell.events.register("pre_run_cell", self._began)
            self._shell.events.register("post_run_cell", self._ended)
        self._listeners.append(listener)
        for cell in self._open:
            _call(listener, "cell_began", cell)

    def remove(self, listener: CellListener) -> None:
        """Remove a listener; again has no effect."""
        if listener in self._listeners:
            self._listeners.remove(listener)
            if not self._listeners:
                self._shell.events.unregister("pre_run_cell", self._began)
                self._shell.events.unregister("post_run_cell", self._ended)
                self._open = []

    def _began(self, info: Any) -> None:
        # The input of this cell is counted after this event, and only if it goes to the history.
        number = last_cell_number(self._shell) + bool(info.store_history)
        cell = Cell(number, info.raw_cell or "", is_whole=True)
        self._open.append(cell)
        for listener in self.listeners:
            _call(listener, "cell_began", cell)

    def _ended(self, result: Any) -> None:
        if self._open:
            cell = self._open.pop()
            cell.ended = perf_counter()
            for listener in reversed(self.listeners):
                _call(listener, "cell_ended", cell, result)


_hubs: weakref.WeakKeyDictionary[InteractiveShell, CellEvents] = weakref.WeakKeyDictionary()


def cell_events(shell: InteractiveShell) -> CellEvents:
    hub = _hubs.get(shell)
    if hub is None:
        hub = _hubs[shell] = CellEvents(shell)
    return hub


def all_listeners() -> list[CellListener]:
    return [listener for hub in list(_hubs.values()) for listener in hub.listeners]


def _call(listener: CellListener, event: str, *args: Any) -> None:
    try:
        getattr(listener, event)(*args)
    except Exception as error:  # whatever fails in a report, the user's cell goes on
        print(
            f"pytorch_memlab: the report of this cell failed: {type(error).__name__}: {error}",
            file=sys.stderr,
        )
