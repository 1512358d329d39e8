"""Ctrl-C that is not lost where Python swallows it."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class KeptInterrupt:
    """Raises an interrupt again that was swallowed while this was entered.

    Python runs the handler of a signal between any two instructions of the main thread, also in a
    weak reference's callback and in a ``__del__``. It prints what these raise, and goes on: a loop
    that waits would then wait for ever.

    >>> with KeptInterrupt() as interrupt:
    ...     interrupt.raise_again()  # there was none
    """

    def __init__(self) -> None:
        self._handler: Any = None
        self._raised: BaseException | None = None

    def raise_again(self) -> None:
        """Raise what Ctrl-C's handler raised, if it was not caught."""
        error, self._raised = self._raised, None
        if error is not None:
            raise error

    def __enter__(self) -> KeptInterrupt:
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler) and threading.current_thread() is threading.main_thread():
            self._handler = handler
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if self._handler is not None and signal.getsignal(signal.SIGINT) == self._handle:
            signal.signal(signal.SIGINT, self._handler)
        if kind is None:
            self.raise_again()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        try:
            self._handler(number, frame)
        except BaseException as error:
            self._raised = error
            raise
