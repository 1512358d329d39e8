"""``explain_oom``: the report after the traceback of an out-of-memory error."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, overload

from ._common.call_results import is_result_dropped
from ._common.uncaught_errors import Report, uncaught
from ._common.wrapping import decorated

if TYPE_CHECKING:
    from typing_extensions import Self

    Function = TypeVar("Function", bound=Callable[..., Any])

__all__ = [
    "Explained",
    "explain_oom",
]


@overload
def explain_oom(func: Function) -> Function: ...
@overload
def explain_oom(func: None = None) -> Explained: ...
def explain_oom(func: Any = None) -> Any:
    """Explain it if a GPU runs out of memory in a block or a function, or has run out of it before.

    The report goes to standard error, after the traceback: the line, what it asked for, what holds
    the memory, and what would help. An error that the block itself handles is not explained.

    ``explain_oom()`` alone, in an ``except`` block or in a cell after the error, shows the report
    of the last error.

    Args:
        func: to decorate; none for a context manager.

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
        explained = Explained()
        if is_result_dropped(sys._getframe(1)):
            print(explained)
        return explained
    return decorated(Explained, func, "explain_oom")


class Explained:
    """A block whose out-of-memory error is explained; a decorator too.

    Where no block is entered, it is about the last error: the one that is handled now, or the one
    that Python or IPython showed last.
    """

    def __init__(self) -> None:
        self._is_of_block = False
        self._report: str | None = None

    @property
    def report(self) -> str | None:
        """The text; None if there was no such error."""
        if not self._is_of_block and self._report is None:
            error = _last_error()
            found = None if error is None else uncaught.explained(error)
            self._report = None if found is None else found.text
        return self._report

    def __enter__(self) -> Self:
        from .devices.failed_request import observe

        observe()
        self._is_of_block, self._report = True, None
        uncaught.watch()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            found = None if error is None else uncaught.add(error, is_asked_for=True)
            self._report = None if found is None else found.text
            if found is not None and found.script is not None:
                uncaught.told.append(self._try)
        finally:
            uncaught.unwatch()

    def _try(self, error: BaseException, report: Report) -> None:  # noqa: ARG002 - told gets it
        """Put what came of trying remedies into a report that is about to be shown."""
        uncaught.told.remove(self._try)
        if report.is_shown or report.advice is not None:
            return
        from .advice.main_script import advice_for_script
        from .render.oom import text

        report.advice = advice_for_script(report.facts, report.script)
        report.text = self._report = text(report.facts, report.advice)

    def __repr__(self) -> str:
        report = self.report
        found = self._why_nothing() if report is None else report.strip().partition("\n")[0]
        return f"<explain_oom: {found}>"

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
        return decorated(Explained, func, "explain_oom")  # type: ignore[no-any-return]


def _last_error() -> BaseException | None:
    """The error that is handled now; otherwise the one that was shown last."""
    handled = sys.exc_info()[1]
    shown = getattr(sys, "last_value", None)
    return handled if handled is not None or not isinstance(shown, BaseException) else shown


def report_of(error: BaseException) -> Report | None:
    """The report of an out-of-memory error; it never raises, and says which part of it failed."""
    try:
        from .advice.main_script import script_on
        from .devices import simulated_machine
        from .devices.failed_request import failed_on_gpu
        from .render.oom import text
        from .reporter.oom_facts import facts_of

        simulated = _failed_on_simulated_gpu(error)
        failed = failed_on_gpu(error) if simulated is None else simulated.request
        if failed is None:
            return None
        facts = facts_of(failed, error, simulated)
        report = Report(facts, text(facts))
        machine = simulated_machine()
        if simulated is not None and machine is not None:
            report.script = script_on(machine)
        return report
    except Exception as problem:
        kind = type(problem).__name__
        return Report(None, f"pytorch_memlab: the out-of-memory report failed: {kind}\n")


def _failed_on_simulated_gpu(error: BaseException) -> Any:
    from .devices import simulated_machine

    machine = simulated_machine()
    words = str(error)
    for gpu in () if machine is None else machine.known_gpus:
        failure = gpu.failure
        if failure is not None and failure.request.text in words:
            return failure
    return None
