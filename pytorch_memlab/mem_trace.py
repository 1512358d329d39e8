"""``GPUMemTrace``: the GPU memory that code used, and its peak above that."""

from __future__ import annotations

from typing import TYPE_CHECKING, ParamSpec, TypeVar

from ._common.patching.wrapping import decorated
from ._common.text.quoted import quoted
from .devices.allocations import current_gpu
from .errors import UsageError
from .gpu_mem import b2mb
from .scopes import PeakScope

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

__all__ = [
    "GPUMemTrace",
    "gpu_mem_trace",
]

P = ParamSpec("P")
T = TypeVar("T")


class GPUMemTrace:
    """Traces allocated bytes of the current GPU, from its construction until ``stop``.

    Peaks are the allocator's own, exact however short they were; any number of traces may run at
    once. Without a GPU all numbers are 0.

    Args:
        silent: makes ``report`` print nothing.
        ctx: label of every report.
        on_exit_report: reports at the end of a ``with`` block.

    Raises:
        UsageError: ``silent`` is a text, which ``ctx`` takes.

    >>> import torch
    >>> from pytorch_memlab.simulation import simulate
    >>> with simulate("24GiB"), GPUMemTrace() as trace:
    ...     kept = torch.empty(10 * 2**20, dtype=torch.uint8, device="cuda")
    ...     _ = torch.empty(20 * 2**20, dtype=torch.uint8, device="cuda").numel()
    >>> trace
    △used: 10MB, △peaked: 20MB
    >>> trace.data()
    (10, 20)
    """

    def __init__(
        self, silent: bool = False, ctx: str | None = None, on_exit_report: bool = False
    ) -> None:
        if isinstance(silent, str):  # type: ignore[unreachable]
            raise UsageError(f"silent is True or False: name the trace with ctx={quoted(silent)}")
        self._silent = silent
        self._context = ctx
        self._reports_on_exit = on_exit_report
        self._scope: PeakScope | None = None
        self._is_running = False
        self.start()

    def start(self) -> None:
        """Start again, on the device that is current now."""
        self.stop()
        index = current_gpu()
        self._scope = None if index is None else PeakScope(index)
        if self._scope is not None:
            self._scope.start()
        self._is_running = True

    def stop(self) -> None:
        """Keep the numbers as they are until the next start; a second stop changes nothing."""
        self._is_running = False
        if self._scope is not None:
            self._scope.stop()

    def reset(self) -> None:
        """Start again; the numbers of a stopped trace become 0."""
        if self._is_running:
            self.start()
        else:
            self._scope = None

    def data_set(self) -> None:
        """Read the numbers once."""
        self.data()

    def data(self) -> tuple[int, int]:
        """MB used now less those at the start, and MB that the peak went above that.

        Returns:
            the first may be negative; the second is the peak less the start, less the first
            number if that is positive.
        """
        scope = self._scope
        return (0, 0) if scope is None else (b2mb(scope.used_delta), b2mb(scope.peaked_delta))

    def silent(self, silent: bool = True) -> None:
        """Print reports no more, or again.

        Args:
            silent: True to print nothing.
        """
        self._silent = silent

    def report(self, note: str = "", subctx: str = "") -> None:
        """Print both numbers.

        Args:
            note: label of the numbers.
            subctx: the same, as newer programs call it.
        """
        if not self._silent:
            print(self._text(note or subctx))

    def report_n_reset(self, note: str = "", subctx: str = "") -> None:
        """Print both numbers, then start again.

        Args:
            note: label of the numbers.
            subctx: the same, as newer programs call it.
        """
        self.report(note, subctx)
        self.reset()

    def peak_monitor_start(self) -> None:
        """Start the peak again. No monitor is needed: the allocator keeps the peak."""
        self.start()

    def peak_monitor_stop(self) -> None:
        """Freeze the peak with the other number."""
        self.stop()

    def peak_monitor_func(self) -> None:
        """Read the peak once."""
        self.data_set()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
        if self._reports_on_exit:
            self.report("exit")

    def __del__(self) -> None:
        # A constructor that failed leaves nothing to stop.
        if getattr(self, "_is_running", False):
            self.stop()

    def __repr__(self) -> str:
        return self._text("")

    def _text(self, note: str) -> str:
        used, peaked = self.data()
        parts = [part for part in (self._context, note) if part]
        return ": ".join([f"△used: {used}MB, △peaked: {peaked}MB", *parts])


def gpu_mem_trace(func: Callable[P, T]) -> Callable[P, T]:
    """Report on every call of a function, by its name.

    Args:
        func: to trace; a coroutine or a generator is traced until it has ended.

    Returns:
        a function that does the same, and reports when it ends, however it ends.

    Raises:
        UsageError: it is no function.
    """

    def trace() -> GPUMemTrace:
        return GPUMemTrace(ctx=func.__qualname__, on_exit_report=True)

    return decorated(trace, func, "gpu_mem_trace")  # type: ignore[no-any-return]
