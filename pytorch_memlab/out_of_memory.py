"""``explain_oom``: the report after the traceback of an out-of-memory error."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, overload

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
    """Explain it if a GPU runs out of memory in a block or a function.

    The report goes to standard error, after the traceback: the line, what it asked for, what holds
    the memory, and what would help. An error that the block itself handles is not explained.

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
        return Explained()
    return decorated(Explained, func, "explain_oom")


class Explained:
    """A block whose out-of-memory error is explained; a decorator too.

    Attributes:
        report: the text, None if no such error left the block.
    """

    def __init__(self) -> None:
        self.report: str | None = None

    def __enter__(self) -> Self:
        from .devices.failed_request import observe

        observe()
        uncaught.watch()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            found = None if error is None else uncaught.add(error, is_asked_for=True)
            self.report = None if found is None else found.text
        finally:
            uncaught.unwatch()

    def __repr__(self) -> str:
        found = "no such error" if self.report is None else self.report.strip().partition("\n")[0]
        return f"<explain_oom: {found}>"

    def _repr_html_(self) -> str | None:
        """The report as a notebook shows it; None, for the line alone, if there is none."""
        if self.report is None:
            return None
        from .render.oom import fragment

        return fragment(self.report)

    def __call__(self, func: Function) -> Function:
        """Decorate a function."""
        return decorated(Explained, func, "explain_oom")  # type: ignore[no-any-return]


def report_of(error: BaseException) -> Report | None:
    """The report of an out-of-memory error; it never raises, and says which part of it failed."""
    try:
        from .devices.failed_request import failed_on_gpu
        from .render.oom import text
        from .reporter.oom_facts import facts_of

        simulated = _failed_on_simulated_gpu(error)
        failed = failed_on_gpu(error) if simulated is None else simulated.request
        if failed is None:
            return None
        facts = facts_of(failed, error, simulated)
        return Report(facts, text(facts))
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
