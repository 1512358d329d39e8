"""A few moments in which Ctrl-C and other signals' Python handlers wait."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold signals' Python handlers back, and run them right after.

    Python runs handlers in the main thread only, so that in any other thread there is nothing to
    hold back.

    >>> with uninterrupted():
    ...     done = "all of it, or nothing"
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        arrived.append(number)

    handlers = _python_handlers()
    try:
        for number in handlers:
            signal.signal(number, note)
        yield
    finally:
        _put_back(handlers)
        for number in sorted(arrived, key=lambda number: number == signal.SIGINT):
            signal.raise_signal(number)


def _put_back(handlers: dict[int, Any]) -> None:
    """Put all handlers back, also when one of them runs and raises in between."""
    left = list(handlers.items())
    try:
        while left:
            signal.signal(*left[-1])
            left.pop()
    finally:
        if left:
            _put_back(dict(left))


def _python_handlers() -> dict[int, Any]:
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    return {number: handler for number, handler in handlers.items() if callable(handler)}
