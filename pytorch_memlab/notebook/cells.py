"""The one hub for IPython's events: which cells are open, and who wants to know when they end."""

from __future__ import annotations

import linecache
import sys
import weakref
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import UsageError

if TYPE_CHECKING:
    from types import FrameType

    from IPython.core.interactiveshell import InteractiveShell


@dataclass(slots=True, eq=False)
class Cell:
    """A cell that runs, or has run.

    Args:
        number: what IPython's prompt calls it; that of the cell around it for ``%%capture`` and
            its like.
        source: as the user typed it; empty if it ran already when somebody began to listen.
        is_whole: whether the hub saw it begin.
        ended: seconds of ``time.perf_counter`` when it had ended, before anybody was told.
    """

    number: int
    source: str
    is_whole: bool
    ended: float = 0.0


class CellListener(Protocol):
    """Who wants to know of cells. A failure of one is told in one line, and ends no cell."""

    def cell_began(self, cell: Cell, /) -> None:
        """A cell begins, or listening begins in the middle of it."""

    def cell_ended(self, cell: Cell, result: Any, /) -> None:
        """A cell has ended.

        Args:
            cell: that ended.
            result: IPython's ``ExecutionResult``.
        """


class Cells:
    """The open cells of one shell, innermost last.

    ``%%capture``, ``%%time`` on a cell of its own and nested runs open a cell within another:
    each level has its own entry.

    Args:
        shell: whose events these are.
    """

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._listeners: list[CellListener] = []
        self._open: list[Cell] = []

    def add(self, listener: CellListener) -> None:
        """Begin to tell a listener; again has no effect.

        If a cell is running, the listener is told at once that it began, and later that it ended.

        Args:
            listener: to tell.
        """
        if listener in self._listeners:
            return
        if not self._listeners:
            running = Cell(self._last_number(), "", is_whole=False)
            self._open = [running] if _is_running_a_cell() else []
            self._shell.events.register("pre_run_cell", self._began)
            self._shell.events.register("post_run_cell", self._ended)
        self._listeners.append(listener)
        for cell in self._open:
            self._tell(listener, "cell_began", cell)

    def remove(self, listener: CellListener) -> None:
        """Tell a listener nothing more; one that is not there is no error.

        Args:
            listener: who was told so far.
        """
        if listener in self._listeners:
            self._listeners.remove(listener)
            if not self._listeners:
                self._shell.events.unregister("pre_run_cell", self._began)
                self._shell.events.unregister("post_run_cell", self._ended)
                self._open = []

    def _began(self, info: Any) -> None:
        # The input of this cell is counted after this event, and only if it goes to the history.
        number = self._last_number() + bool(info.store_history)
        cell = Cell(number, info.raw_cell or "", is_whole=True)
        self._open.append(cell)
        for listener in self._listeners.copy():
            self._tell(listener, "cell_began", cell)

    def _ended(self, result: Any) -> None:
        if self._open:
            cell = self._open.pop()
            cell.ended = perf_counter()
            for listener in reversed(self._listeners.copy()):
                self._tell(listener, "cell_ended", cell, result)

    def _last_number(self) -> int:
        return len(self._shell.user_ns.get("In", ())) - 1

    def _tell(self, listener: CellListener, event: str, *args: Any) -> None:
        try:
            getattr(listener, event)(*args)
        except Exception as error:  # whatever fails in a report, the user's cell goes on
            print(
                f"pytorch_memlab: the report of this cell failed: {type(error).__name__}: {error}",
                file=sys.stderr,
            )


_cells: weakref.WeakKeyDictionary[InteractiveShell, Cells] = weakref.WeakKeyDictionary()


def current_shell() -> InteractiveShell:
    """The IPython shell that runs this code.

    Raises:
        UsageError: there is none.
    """
    # IPython is in sys.modules wherever one of its shells is; importing it takes half a second.
    module = sys.modules.get("IPython")
    shell = None if module is None else module.get_ipython()
    if shell is None:
        raise UsageError("this needs IPython: run it in a notebook, or in ipython")
    return shell  # type: ignore[no-any-return]


def running_source(shell: InteractiveShell, frame: FrameType) -> str:
    """The cell that runs, from which the lines of its frame are counted.

    Args:
        shell: an IPython shell.
        frame: of the cell.
    """
    lines = linecache.getlines(frame.f_code.co_filename)
    if lines:
        return "".join(lines)
    # %%time compiles without leaving its source anywhere: what was typed last has it.
    history = shell.history_manager
    typed = [] if history is None else history.input_hist_raw
    return typed[-1] if typed else ""


def cells_of(shell: InteractiveShell) -> Cells:
    """The hub of a shell, the same one every time.

    Args:
        shell: an IPython shell.
    """
    hub = _cells.get(shell)
    if hub is None:
        hub = _cells[shell] = Cells(shell)
    return hub


def is_resetting() -> bool:
    """Whether IPython is emptying its namespaces: at its end, or for ``%reset``."""
    from IPython.core.interactiveshell import InteractiveShell

    return _is_in(InteractiveShell.reset)


def is_reloading() -> bool:
    """Whether IPython is loading an extension again, for which it unloads it first."""
    from IPython.core.extensions import ExtensionManager

    return _is_in(ExtensionManager.reload_extension)


def _is_running_a_cell() -> bool:
    from IPython.core.interactiveshell import InteractiveShell

    return _is_in(InteractiveShell.run_code)


def _is_in(function: Any) -> bool:
    """Whether a call of a function is in progress in this thread."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code is function.__code__:
            return True
        frame = frame.f_back
    return False
