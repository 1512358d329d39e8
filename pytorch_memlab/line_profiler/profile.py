"""Decorators that profile with one profiler for the whole process."""

from __future__ import annotations

import atexit
import functools
import sys
from typing import TYPE_CHECKING, Any, TextIO, TypeVar, overload

from .._common.frames.call_results import is_result_dropped
from .._common.interrupts.uninterrupted import uninterrupted
from .._common.patching.wrapping import within
from .._common.process.ipython import ipython_shell
from .._common.process.standard_output import write_to_stdout
from .._common.process.switch import is_switched_off
from .._common.process.uncaught_errors import ErrorReport, say, uncaught
from .._common.text.quoted import quoted
from ..errors import UsageError
from .columns import DEFAULT_COLUMNS, checked_columns
from .line_profiler import LineProfiler
from .line_records import RecordsDisplay
from .recorded_lines import show
from .registration import resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch

    Function = TypeVar("Function", bound=Callable[..., Any])


class _GlobalLineProfiler(LineProfiler):
    """The profiler of the process: on from the first function, until it is turned off."""

    def __init__(self) -> None:
        super().__init__()
        self._is_off = False
        self._explains = False

    def enable(self) -> None:
        self._is_off = False
        with uninterrupted():
            super().enable()
            self._explain_errors()

    def disable(self) -> None:
        self._is_off = True
        with uninterrupted():
            super().disable()
            self._explain_errors()

    def release(self) -> None:
        """Be on while there are functions, after ``disable``."""
        self._is_off = False
        if self._codes:
            super().enable()

    def add_function(self, func: Any) -> None:
        super().add_function(func)
        if not self._is_off:
            with uninterrupted():
                super().enable()
                self._explain_errors()

    def clear(self) -> None:
        with uninterrupted():
            super().clear()
            _printed_at_exit.clear()
            self._explain_errors()

    def _explain_errors(self) -> None:
        """Wait for an out-of-memory error while there is a function that may raise it."""
        explains = self.enabled and bool(self._codes)
        if explains == self._explains:
            return
        self._explains = explains
        if explains:
            uncaught.watch()
            uncaught.told.append(self._told)
        else:
            uncaught.told.remove(self._told)
            uncaught.unwatch()

    def _told(self, error: BaseException, report: ErrorReport) -> None:
        """An error was shown: its lines are marked, and its report follows the tables."""
        self.note_failure(error)
        if _printed_at_exit and not _is_taken_over and ipython_shell() is None:
            report.is_shown = True
            _reports_at_exit.append(report.text)


_printed_at_exit: list[tuple[Any, tuple[str, ...]]] = []
_is_taken_over = False
_reports_at_exit: list[str] = []
"""Out-of-memory reports that follow the tables."""

global_line_profiler = _GlobalLineProfiler()


def clear_global_line_profiler() -> None:
    """Forget all records and functions of the decorators' profiler."""
    global_line_profiler.clear()


def set_target_gpu(gpu_id: int | str | torch.device | None) -> None:
    """Let the decorators measure one device, also from inside a profiled function.

    Args:
        gpu_id: index, string or ``torch.device``; None for every device that the process uses.

    Raises:
        UnknownDeviceError: there is no such device.
    """
    global_line_profiler.target_gpu = gpu_id


def display(
    func: Any = None, columns: str | Iterable[str] | None = DEFAULT_COLUMNS
) -> RecordsDisplay:
    """The lines recorded so far: a table with bars in a notebook, text elsewhere.

    It is shown at once where nothing gets the result, as in a script.

    Args:
        func: a decorated function, its qualified name, or several; None for all.
        columns: as ``LineProfiler.display`` takes them.

    Returns:
        an object that renders itself.
    """
    result = global_line_profiler.display(func, columns)
    if is_result_dropped(sys._getframe(1)):
        show(result)
    return result


@overload
def profile(func: Function, columns: str | Iterable[str] | None = ...) -> Function: ...
@overload
def profile(
    func: None = None, columns: str | Iterable[str] | None = ...
) -> Callable[[Function], Function]: ...
def profile(func: Any = None, columns: str | Iterable[str] | None = DEFAULT_COLUMNS) -> Any:
    """Decorate a function to print its lines' memory when the program ends.

    An exception or Ctrl-C ends it too. Nothing is printed where a signal such as SIGTERM that the
    program does not handle, or ``os._exit``, ends the process at once.

    In a notebook, ``pytorch_memlab.display()`` shows it at any time.

    Args:
        func: function or method; with brackets it comes later.
        columns: as ``LineProfiler.display`` takes them.

    Returns:
        the very same function.

    Raises:
        NotAFunctionError: something that has no Python source lines.
        UnknownColumnError: the message lists the near ones.
    """
    if func is None:
        return functools.partial(profile, columns=columns)
    if is_switched_off():
        return func
    columns = checked_columns(columns)
    global_line_profiler.add_function(func)
    _tell_of_display()
    if not _printed_at_exit:
        global _is_taken_over
        _is_taken_over = False
        atexit.unregister(_print_at_exit)
        atexit.register(_print_at_exit)
    _printed_at_exit.append((func, columns))
    return func


_has_told_of_display = False


def _tell_of_display() -> None:
    """Say once how to show the tables where ``import *`` has left IPython its ``display``."""
    global _has_told_of_display
    shell = ipython_shell()
    names = {} if shell is None else shell.user_ns
    if _has_told_of_display or names.get("profile") is not profile:
        return
    if names.get("display") is not display:
        _has_told_of_display = True
        print("from pytorch_memlab import display: then display() shows what @profile records")


def profile_every(
    output_interval: Any = 1,
    enable: bool = True,
    columns: str | Iterable[str] | None = DEFAULT_COLUMNS,
) -> Any:
    """Decorate a function to print its lines' memory every so many calls.

    Each table is of the calls since the last one, unless ``@profile`` records the function too:
    then it is of all calls.

    Args:
        output_interval: number of calls from one table to the next, positive.
        enable: False leaves the function as it is.
        columns: as ``LineProfiler.display`` takes them.

    Returns:
        a decorator; without brackets, the decorated function.

    Raises:
        UsageError: the interval is no positive int.
        NotAFunctionError: something that has no Python source lines.
        UnknownColumnError: the message lists the near ones.
    """
    if callable(output_interval):
        return profile_every()(output_interval)
    if isinstance(output_interval, bool) or not isinstance(output_interval, int):
        raise UsageError(f"output_interval is a number of calls, not {quoted(output_interval)}")
    if output_interval < 1:
        raise UsageError(f"output_interval is at least 1 call, not {quoted(output_interval)}")
    checked = checked_columns(columns)

    def decorate(func: Function) -> Function:
        if not enable or is_switched_off():
            return func
        global_line_profiler.add_function(func)
        counter = _Counter(func, output_interval, checked)
        return within(lambda: counter, func)  # type: ignore[return-value]

    return decorate


class _Counter:
    """The context of each call of one function: counts them, and prints at every n-th."""

    def __init__(self, func: Any, interval: int, columns: tuple[str, ...]) -> None:
        self._func = func
        self._interval = interval
        self._columns = columns
        self._calls = 0

    def __enter__(self) -> None:
        """A call begins."""

    def __exit__(self, *exc: object) -> None:
        self._calls += 1
        if self._calls % self._interval:
            return
        global_line_profiler.print_stats(self._func, self._columns)
        if not _is_printed_at_exit(self._func):
            global_line_profiler.forget(self._func)


def _is_printed_at_exit(func: Any) -> bool:
    """True if ``@profile`` records a function too, under any decorator between the two."""
    codes = {id(function.__code__) for function in resolve(func)}
    return any(
        id(function.__code__) in codes
        for printed, _ in _printed_at_exit
        for function in resolve(printed)
    )


def _print_at_exit() -> None:
    write_to_stdout(_print_tables)
    while _reports_at_exit:
        say(_reports_at_exit.pop(0))


def _print_tables(stream: TextIO) -> None:
    by_columns: dict[tuple[str, ...], list[Any]] = {}
    for func, columns in _printed_at_exit:
        by_columns.setdefault(columns, []).append(func)
    for columns, functions in by_columns.items():
        global_line_profiler.print_stats(functions, columns, stream)
        print(file=stream)


def printed_at_exit() -> list[tuple[Any, tuple[str, ...]]]:
    """The functions of ``@profile`` so far, with their columns."""
    return list(_printed_at_exit)


def take_over_printing() -> list[tuple[Any, tuple[str, ...]]]:
    """Keep ``@profile`` from printing at exit; returns the list of its functions, which grows."""
    global _is_taken_over
    _is_taken_over = True
    atexit.unregister(_print_at_exit)
    return _printed_at_exit
