"""``explain_oom``: the report after the traceback of an out-of-memory error."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, overload

from ._common.frames.call_results import is_result_dropped
from ._common.patching.wrapping import decorated
from ._common.process.uncaught_errors import ErrorReport, say, uncaught
from ._common.torch.library_errors import library_without_memory

if TYPE_CHECKING:
    from typing import Self

    Function = TypeVar("Function", bound=Callable[..., Any])

__all__ = [
    "Explained",
    "explain_oom",
]


@overload
def explain_oom(func: Function, *, no_try: bool = False) -> Function: ...
@overload
def explain_oom(func: None = None, *, no_try: bool = False) -> Explained: ...
def explain_oom(func: Any = None, *, no_try: bool = False) -> Any:
    """Explain it if a GPU runs out of memory in a block or a function, or has run out of it before.

    The report goes to standard error, after the traceback: the line, what it asked for, what holds
    the memory, and what would help. An error that the block itself handles is not explained.

    ``explain_oom()`` alone, in an ``except`` block or in a cell after the error, shows the report
    of the last error.

    On simulated GPUs, remedies are tried before the report is shown: the script, or the cells that
    have run, run again in other processes, for 30 seconds at most.

    Args:
        func: to decorate; none for a context manager.
        no_try: whether to name remedies without trying them.

    Returns:
        The decorated function, or a context manager whose ``report`` is the text after an error.

    Raises:
        UsageError: it is no function.

    >>> from pytorch_memlab import simulate
    >>> import torch
    >>> with simulate("1GiB"), explain_oom() as explained:
    ...     kept = torch.empty(2**20, device="cuda")
    >>> print(explained.report)
    None
    """
    if func is None:
        explained = Explained(no_try=no_try)
        if is_result_dropped(sys._getframe(1)):
            print(explained)
        return explained
    return decorated(partial(Explained, no_try=no_try), func, "explain_oom")


class Explained:
    """A block whose out-of-memory error is explained; a decorator too.

    Where no block is entered, it is about the last error: the one that is handled now, or the one
    that Python or IPython showed last.
    """

    def __init__(self, *, no_try: bool = False) -> None:
        self._no_try = no_try
        self._is_of_block = False
        self._report: ErrorReport | None = None

    @property
    def report(self) -> str | None:
        """The text; None if there was no such error."""
        if not self._is_of_block and self._report is None:
            error = _last_error()
            self._report = None if error is None else uncaught.explained(error)
        return None if self._report is None else self._report.text

    def __enter__(self) -> Self:
        from .devices.failed_request import observe

        observe()
        self._is_of_block, self._report = True, None
        uncaught.watch()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self._report = None if error is None else uncaught.add(error, is_asked_for=True)
            if error is not None and self._no_try:
                leave_untried(error)
        finally:
            uncaught.unwatch()

    def __repr__(self) -> str:
        report = self.report
        summary = self._why_nothing() if report is None else report.strip().partition("\n")[0]
        return f"<explain_oom: {summary}>"

    def __str__(self) -> str:
        """The report; the line alone if there is none."""
        return repr(self) if self.report is None else self.report.strip("\n")

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002 - IPython gives it
        """The report, also in a terminal."""
        printer.text(str(self))

    def _why_nothing(self) -> str:
        error = _last_error()
        if self._is_of_block:
            return "no such error"
        if error is None:
            return "there was no error yet; explain_oom() is for after one, or in a with statement"
        return f"the last error, {type(error).__name__}, was not for lack of GPU memory"

    def _repr_html_(self) -> str | None:
        """The report as a notebook shows it; None, for the line alone, if there is none."""
        if self.report is None:
            return None
        from .render.oom import fragment

        return fragment(self.report)

    def __call__(self, func: Function) -> Function:
        """Decorate a function."""
        again = partial(Explained, no_try=self._no_try)
        return decorated(again, func, "explain_oom")  # type: ignore[no-any-return]


def leave_untried(error: BaseException) -> None:
    """Show the report of an error without trying remedies."""
    report = uncaught.add(error)
    if report is not None:
        report.try_remedies = None


def _last_error() -> BaseException | None:
    """The error that is handled now; otherwise the one that was shown last."""
    handled = sys.exc_info()[1]
    last_value = getattr(sys, "last_value", None)
    return (
        handled if handled is not None or not isinstance(last_value, BaseException) else last_value
    )


def report_of(error: BaseException) -> ErrorReport | None:
    """The report of an out-of-memory error; it never raises, and says which part of it failed."""
    try:
        from .advice.this_program import program_on
        from .devices import simulated_machine
        from .devices.failed_request import failed_on_gpu
        from .render.oom import text
        from .reporter.oom_facts import facts_of

        simulated = _failed_on_simulated_gpu(error)
        failed = failed_on_gpu(error) if simulated is None else simulated.request
        if failed is None:
            return _report_of_library(error)
        facts = facts_of(failed, error, simulated)
        report = ErrorReport(facts, text(facts))
        machine = simulated_machine()
        if simulated is not None and machine is not None:
            program = program_on(machine)
            if program is not None:
                report.try_remedies = partial(_try_remedies, report, program)
        return report
    except Exception as problem:
        kind = type(problem).__name__
        return ErrorReport(None, f"pytorch_memlab: the out-of-memory report failed: {kind}\n")


def _report_of_library(error: BaseException) -> ErrorReport | None:
    """The report of an error of a library, which PyTorch's allocator knows nothing about."""
    library = library_without_memory(error)
    if library is None:
        return None
    from .devices.free_memory import free_memory
    from .render.library_oom import text

    return ErrorReport(None, text(library, free_memory()))


def _try_remedies(report: ErrorReport, program: Any) -> None:
    from .advice.this_program import advice_for
    from .render.oom import text

    report.try_remedies = None
    try:
        report.advice = advice_for(report.facts, program, _tell)
    except KeyboardInterrupt:
        _tell("the remedies were not tried: interrupted")
    except Exception as problem:
        _tell(f"the remedies could not be tried: {type(problem).__name__}: {problem}")
    else:
        report.text = text(report.facts, report.advice)


def _tell(text: str) -> None:
    say(f"pytorch_memlab: {text}\n")


def _failed_on_simulated_gpu(error: BaseException) -> Any:
    from .devices import simulated_machine

    machine = simulated_machine()
    words = str(error)
    for gpu in () if machine is None else machine.known_gpus:
        failure = gpu.failure
        if failure is not None and failure.request.text in words:
            return failure
    return None
