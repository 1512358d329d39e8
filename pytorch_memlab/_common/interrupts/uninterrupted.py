"""Moments in which Ctrl-C and other signals' handlers wait, or in which none is lost."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterable
from types import FrameType
from typing import Any

from .stack_room import check_room

# The module below ``signal``, which makes an enum of every handler: that would cost more than the
# allocation that is to be protected.
_signal: Any = importlib.import_module("_signal")

signal_handler = _getsignal = _signal.getsignal
"""``signal.getsignal``, whatever stands in its place."""

set_handler = _set_handler = _signal.signal
"""``signal.signal``, whatever stands in its place."""

DEFAULT_ACTION: Any = _signal.SIG_DFL
"""``signal.SIG_DFL``, as ``set_handler`` takes it."""

_get_ident = threading.get_ident
_main_thread = threading.main_thread().ident


def _see_main_thread() -> None:
    """In a forked process, the thread that forked is the main thread."""
    global _main_thread
    _main_thread = threading.main_thread().ident


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_see_main_thread)

_ALL = tuple(sorted(map(int, signal.valid_signals())))

_NAMES = "INT ALRM TERM USR1 USR2 HUP QUIT VTALRM PROF CHLD XCPU IO"

STANDARD_SIGNALS = tuple(
    int(getattr(signal, f"SIG{name}")) for name in _NAMES.split() if hasattr(signal, f"SIG{name}")
)
"""Those that end programs, time them and talk to them, for moments too short to ask for all: not
those of faults, of job control and of terminals."""

_holder: uninterrupted | None = None
"""What holds signals back now: one inside it has nothing to do."""

_Handlers = tuple[tuple[int, Any], ...]

_asked: dict[tuple[int, ...], tuple[tuple[Any, ...], _Handlers]] = {}
"""The handlers of signals when they were asked for last, and those of them that are Python's."""


def _python_handlers(numbers: tuple[int, ...]) -> _Handlers:
    """Those of some signals, asked for at every allocation: mostly they are what they were."""
    handlers = tuple(map(_getsignal, numbers))
    before = _asked.get(numbers)
    if before is not None and before[0] == handlers:
        return before[1]
    ours = tuple(
        (number, handler)
        for number, handler in zip(numbers, handlers, strict=True)
        if handler.__class__ is not int and handler is not None
    )
    _asked[numbers] = handlers, ours
    return ours


class _Held:
    """The signals that are held back now."""

    __slots__ = ("standard",)

    def __init__(self) -> None:
        self.standard = False
        """True while a block that holds back the standard signals, or all, is running."""


held = _Held()


class uninterrupted:  # noqa: N801 - reads as a state
    """Holds signals' Python handlers back, which run in the main thread, until right after."""

    __slots__ = ("_arrived", "_handlers", "_left", "_numbers")

    def __init__(self, *numbers: int) -> None:
        self._numbers = numbers or _ALL
        self._handlers: _Handlers = ()

    def __enter__(self) -> None:
        global _holder
        outer = _holder
        if outer is not None and len(outer._numbers) >= len(self._numbers):
            return
        if _get_ident() != _main_thread:
            return
        handlers = _python_handlers(self._numbers)
        check_room()  # also what puts the handlers back needs some
        self._arrived: list[int] = []
        note, begun = self._note, iter(handlers)
        self._left = iter(handlers)  # to put back, for which there may be no memory then
        try:
            self._handlers = handlers
            for number, _ in begun:
                _set_handler(number, note)
            if outer is None:
                _holder = self
                held.standard = len(self._numbers) >= len(STANDARD_SIGNALS)
        except BaseException:
            self._run_handlers()
            raise

    def __exit__(self, *exc: object) -> None:
        global _holder
        if _holder is self:
            held.standard = False
            _holder = None
        handlers = self._handlers
        if not handlers:
            return
        if self._arrived:
            self._run_handlers()
            return
        # Mostly nothing has arrived. No function is called and no object made: where Python can
        # call no deeper, or has no memory, the handlers would stay away.
        pair = None
        try:
            for pair in self._left:
                _set_handler(pair[0], pair[1])
            pair = None
        finally:
            if pair is not None:  # this one has raised
                _put_back((pair, *self._left))
            if self._arrived:  # at the last moment
                _raise_all(self._arrived)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._arrived.append(number)

    def _run_handlers(self) -> None:
        """Run the handlers whose signals have arrived, then put all back."""
        handlers = self._handlers
        try:
            if self._arrived:
                self._run_in_order(dict(handlers))
                # A handler may have set another one.
                handlers = tuple(
                    handler for handler in handlers if _getsignal(handler[0]) == self._note
                )
        finally:
            _put_back(handlers)
            if self._arrived:
                _raise_all(self._arrived)

    def _run_in_order(self, handlers: dict[int, Any]) -> None:
        """Run handlers in the order of their signals, Ctrl-C's last, also those that come now."""
        arrived = self._arrived
        others = (place for place, number in enumerate(arrived) if number != signal.SIGINT)
        number = arrived.pop(next(others, 0))
        try:
            handlers[number](number, sys._getframe())
        finally:
            if arrived:
                self._run_in_order(handlers)


def _put_back(handlers: Iterable[tuple[int, Any]]) -> None:
    """Put all handlers back, also when one of them runs and raises in between."""
    left = list(handlers)
    try:
        while left:
            _set_handler(*left[-1])
            left.pop()
    finally:
        if left:
            _put_back(left)


def _raise_all(numbers: list[int]) -> None:
    """Let each signal arrive, also after the handler of one before it raised."""
    try:
        signal.raise_signal(numbers[0])
    finally:
        if numbers[1:]:
            _raise_all(numbers[1:])


class KeptInterrupt:
    """Raises an interrupt again that was swallowed while this was entered.

    >>> with KeptInterrupt() as interrupt:
    ...     interrupt.raise_again()  # there was none
    """

    # Python runs the handler of a signal between any two instructions of the main thread, also in a
    # weak reference's callback and in a ``__del__``. It prints what these raise, and goes on: a
    # loop that waits would then wait for ever.

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
