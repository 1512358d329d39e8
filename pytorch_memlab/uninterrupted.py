"""A few moments in which Ctrl-C and other signals' Python handlers wait."""

from __future__ import annotations

import importlib
import signal
import threading
from types import FrameType
from typing import Any

try:
    # The module below ``signal``, which makes an enum of every handler: that would cost more than
    # the allocation that is to be protected.
    _signal: Any = importlib.import_module("_signal")
except ImportError:  # another Python than CPython
    _signal = signal


class uninterrupted:  # noqa: N801 - reads as the state that it is
    """Holds signals' Python handlers back, and runs them right after.

    Python runs handlers in the main thread only, so that in any other thread there is nothing to
    hold back.

    Args:
        numbers: of the signals; none for all that a program can catch.

    >>> with uninterrupted():
    ...     done = "all of it, or nothing"
    """

    __slots__ = ("_arrived", "_handlers", "_numbers")

    def __init__(self, *numbers: int) -> None:
        self._numbers = numbers

    def __enter__(self) -> None:
        self._arrived: list[int] = []
        self._handlers: dict[int, Any] = {}
        if threading.current_thread() is not threading.main_thread():
            return
        for number in self._numbers or signal.valid_signals():
            handler = _signal.getsignal(number)
            if callable(handler):
                self._handlers[number] = handler
        try:
            for number in self._handlers:
                _signal.signal(number, self._note)
        except BaseException:
            self._run_handlers()
            raise

    def __exit__(self, *exc: object) -> None:
        self._run_handlers()

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._arrived.append(number)

    def _run_handlers(self) -> None:
        """Put the handlers back, and run those whose signals have arrived, Ctrl-C's last."""
        _put_back(self._handlers)
        if self._arrived:
            for number in sorted(self._arrived, key=lambda number: number == signal.SIGINT):
                signal.raise_signal(number)


def _put_back(handlers: dict[int, Any]) -> None:
    """Put all handlers back, also when one of them runs and raises in between."""
    left = list(handlers.items())
    try:
        while left:
            _signal.signal(*left[-1])
            left.pop()
    finally:
        if left:
            _put_back(dict(left))
