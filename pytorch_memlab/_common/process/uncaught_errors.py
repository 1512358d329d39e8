"""Reports of errors that nothing handled, shown after the traceback.

Note [When a report is shown]
A report is for errors that end something. Where one leaves a simulation, a profiled block or a
program under ``run``, an outer handler may still wait for it. So the report is made there, while
the tensors are alive, and waits until the error is shown: by ``sys.excepthook``, by
``threading.excepthook`` or by IPython. If a handler takes the error, the report goes with it. An
error that leaves an ``explain_oom`` block was asked about: its report is shown also if a handler
takes the error, when the handler is done with it.
"""

from __future__ import annotations

import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytorch_memlab

from ..torch.library_errors import library_without_memory
from .ipython import ipython_shell


class ErrorReport:
    """The report of one error."""

    def __init__(self, facts: Any, text: str) -> None:
        self.facts = facts
        self.advice: Any = None  # the remedies that were tried; None if none was
        # puts what came of trying remedies into it, before it is shown; None where none is tried
        self.try_remedies: Callable[[], object] | None = None
        self.text = text
        self.is_shown = False  # True if it is on the screen, or another part prints it
        self.is_asked_for = False  # True to show it even if a handler takes the error
        self.is_written = False  # True if a file has it
        self.is_of_cell = False  # True if it was made in a cell that has not ended

    def show(self) -> None:
        """Print it as the last thing, once."""
        if not self.is_shown:
            self.is_shown = True
            say(self.text)


class _Uncaught:
    """The hooks that see errors which nothing handled, while anything waits for one."""

    def __init__(self) -> None:
        self._watching = 0
        self._reports: dict[int, tuple[weakref.ref[Any], ErrorReport]] = {}
        self._lock = threading.RLock()
        self._hooks: list[tuple[Any, _Hook]] = []
        self._cells: Any = None  # of the notebook, to which this listens
        self.told: list[Callable[[BaseException, ErrorReport], object]] = []
        """Called with an error that was shown and its report, which may be shown already."""

    def watch(self) -> None:
        """Report errors that nothing handles, until ``unwatch``."""
        with self._lock:
            self._watching += 1
            self._install()

    def unwatch(self) -> None:
        with self._lock:
            self._watching -= 1
            self._uninstall()

    def add(self, error: BaseException, *, is_asked_for: bool = False) -> ErrorReport | None:
        """The report of an error that leaves a block, made now and shown later."""
        origin = _origin(error)
        if origin is None:
            return None
        with self._lock:
            entry = self._reports.get(id(origin))
            is_known = entry is not None and entry[0]() is _referable(origin)
            report = entry[1] if entry is not None and is_known else None
            if report is None:
                report = pytorch_memlab._report_of(origin)
                if report is None:
                    return None
                gone = partial(self._gone, id(origin))
                self._reports[id(origin)] = (weakref.ref(_referable(origin), gone), report)
                self._install()
                report.is_of_cell = self._cells is not None
            report.is_asked_for |= is_asked_for
            return report

    def explained(self, error: BaseException) -> ErrorReport | None:
        """The report of an error, for a caller that shows it now."""
        with self._lock:
            report = self.add(error)
            if report is not None:
                report.is_shown = True
            self._uninstall()
        return report

    def shown(self, error: BaseException | None) -> None:
        """The traceback of an error was shown: its report follows."""
        if error is None:
            return
        try:
            report = self.add(error)
            if report is not None:
                if report.try_remedies is not None and not report.is_shown:
                    report.try_remedies()
                for tell in self.told.copy():
                    tell(error, report)
                report.show()
        except Exception as failure:
            say(f"pytorch_memlab: the out-of-memory report failed: {first_line(failure)}\n")
        with self._lock:
            self._uninstall()

    def cell_began(self, cell: Any, /) -> None:
        """Nothing is done before an error."""

    def cell_ended(self, cell: Any, result: Any, /) -> None:  # noqa: ARG002 - the hub gives it
        """A cell has ended, and IPython has shown the traceback of its error, if any."""
        self.shown(getattr(result, "error_in_exec", None))
        with self._lock:
            for _, report in self._reports.values():
                report.is_of_cell = False
            self._uninstall()

    def _gone(self, key: int, _reference: object) -> None:
        with self._lock:
            entry = self._reports.pop(key, None)
            if entry is not None and entry[1].is_asked_for:
                entry[1].show()
            self._uninstall()

    def _install(self) -> None:
        if not self._hooks:
            modules: tuple[Any, ...] = (sys, threading)
            for module in modules:
                hook = module.excepthook = _Hook(module.excepthook)
                self._hooks.append((module, hook))
        shell = ipython_shell()
        if shell is not None:
            cells = pytorch_memlab._cells_of(shell)
            if self._cells is not cells:
                self._stop_listening()
                self._cells = cells
                cells.add(self)

    def _uninstall(self) -> None:
        waiting = [report for _, report in self._reports.values() if not report.is_shown]
        if not self._watching and not any(report.is_of_cell for report in waiting):
            self._stop_listening()
        if self._watching or waiting:
            return
        for module, hook in self._hooks:
            hook.is_watching = False
            if module.excepthook is hook:
                module.excepthook = hook.before
        self._hooks = []

    def _stop_listening(self) -> None:
        cells, self._cells = self._cells, None
        if cells is not None:
            cells.remove(self)


uncaught = _Uncaught()


class _Hook:
    """Stands for ``sys.excepthook`` or ``threading.excepthook`` while anything is watched."""

    def __init__(self, before: Callable[..., object]) -> None:
        self.before = before
        # False once nothing waits: another's hook, as that of a process group, may still call this.
        self.is_watching = True

    def __call__(self, *args: Any) -> None:
        error = args[1] if len(args) > 1 else getattr(args[0], "exc_value", None)
        try:
            self.before(*args)
        finally:
            if self.is_watching:
                uncaught.shown(error)


class _Mark:
    """Goes with an error that has it: built-in exceptions have no weak references."""


def _referable(error: BaseException) -> Any:
    """An error, or what goes with it if that alone can be referred to."""
    if type(error).__weakrefoffset__:
        return error
    return vars(error).setdefault("_pytorch_memlab", _Mark())


def _origin(error: BaseException) -> BaseException | None:
    """The out-of-memory error in the chain of an error, the one that was raised last."""
    # One of PyTorch comes before one of a library.
    torch: Any = sys.modules.get("torch")
    kind = getattr(torch, "OutOfMemoryError", None)
    if kind is None:
        return None
    errors = list(chain(error))
    origin = next((error for error in errors if isinstance(error, kind)), None)
    return origin or next((error for error in errors if library_without_memory(error)), None)


def chain(error: BaseException, *, suppressed: bool = False) -> Iterator[BaseException]:
    """An error, the exceptions of a group, and their causes and contexts, each once."""
    # PyTorch's compiler keeps the error of a backend in ``inner_exception``, and suppresses it.
    left: list[BaseException | None] = [error]
    seen: set[int] = set()
    while left:
        current = left.pop()
        if not isinstance(current, BaseException) or id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        left.append(current.__cause__)
        if suppressed or not current.__suppress_context__:
            left.append(current.__context__)
        left += getattr(current, "exceptions", ())
        left.append(getattr(current, "inner_exception", None))


def message_of(error: BaseException) -> str:
    """The message of an error; empty for one that fails to tell it."""
    try:
        return str(error)
    except Exception:
        return ""


def first_line(error: BaseException) -> str:
    """The class of an error and the first line of its message, without notes that were added.

    >>> error = ValueError("no file")
    >>> first_line(error)
    'ValueError: no file'
    """
    lines = traceback.format_exception_only(error)
    # Before the message of a syntax error stands its place, and notes come after a message.
    line = next((line for line in lines if not line.startswith(" ")), lines[-1])
    return line.splitlines()[0]


def forget_shown_error() -> None:
    """Drop what Python keeps of the error that it showed last."""
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):
        vars(sys).pop(name, None)


def say(text: str) -> None:
    """Print a report on standard error, whatever state that is in."""
    stream = sys.stderr
    if stream is None:
        return
    with suppress(Exception):
        stream.write(f"\n{text}")
        stream.flush()
