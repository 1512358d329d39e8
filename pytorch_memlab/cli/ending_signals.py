"""Signals that end a program from outside, such as those of schedulers: its report comes first.

Note [Signals that end a program]
``SIGTERM`` and ``SIGHUP`` end a process without an exception, an exit handler or a ``finally``.
Under ``run`` no code of the program runs after them either: the report is made where the program
is, and the process then ends by the same signal, so that its parent sees what it would have seen.

Where the program sets a handler, that handler runs instead. A program that asks for the handler
in force sees ``SIG_DFL``, and one that puts ``SIG_DFL`` back gets the report again. A signal that
is ignored from the start, as under ``nohup``, stays ignored.

Python runs a handler in the main thread, between two instructions. That is no moment for a report
while the simulated allocator changes its state, a module is half imported or a text is half
written; and it never comes while the main thread waits in C, as in a collective operation of ranks
of which one is gone. So a thread waits for the signal as well. It sends the signal again until the
moment is right, and makes the report by itself after ``_PATIENCE`` seconds.

A scheduler signals all processes of a job, and a launcher passes its signal on to its workers. So
signals within ``_COPIES`` seconds after the first are copies of it. A later one ends the process
at once.

``SIGUSR1`` asks for the profile of a program that goes on. The thread that waits for signals has it
written, so that it is written also while the main thread waits in C.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from .._common.interrupts.uninterrupted import (
    DEFAULT_ACTION,
    STANDARD_SIGNALS,
    set_handler,
    signal_handler,
    uninterrupted,
)
from .._common.interrupts.whole_block import WholeBlock
from .._common.interrupts.whole_exit import WholeExit
from .._common.patching.patches import Patches
from ..simulation.inspect import active

_PATIENCE: Final = 3.0
"""Seconds for the main thread to come to a moment that is right; launchers grant 10 or more."""

_COPIES: Final = 2.0
"""Seconds in which further signals are copies of the first one."""

_PAUSE: Final = 0.005
"""Seconds between two signals to the main thread."""

_STOP: Final = b"\0"

NUMBERS: Final = tuple(
    int(getattr(signal, name)) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)
)
"""The signals that schedulers, launchers and closed terminals send."""

OTHERS: Final = tuple(number for number in STANDARD_SIGNALS if number not in NUMBERS)
"""Those of the standard signals that this module sets no handler of."""

# Those of this moment: the program may replace them, as gevent does.
_exit, _kill, _read, _write = os._exit, os.kill, os.read, os.write


class EndedBySignal(BaseException):
    """A signal ended the program."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
        self.name = signal.Signals(number).name


class EndingSignals:
    """Lets a report be made before a signal ends this process."""

    # See Note [Signals that end a program].

    def __init__(self, requests: Mapping[int, Callable[[], None]]) -> None:
        self._requests = requests
        self._process = os.getpid()
        self._main_thread = threading.main_thread().ident or 0
        self._make_report: Callable[[EndedBySignal], object] = lambda _error: None
        self._claim = _thread.allocate_lock()  # taken once, by the thread that ends the process
        self._claimed_by = 0
        self._claimed_at = 0.0
        self._reports = 0  # how many blocks of ``report`` are running
        self._began = 0.0  # when the first of them did
        self._waiting = 0  # the signal that waits for a right moment, or for the end of the report
        self._pipe: tuple[int, int] | None = None

    def start(self, process: ExitStack, make_report: Callable[[EndedBySignal], object]) -> None:
        """From now on until a stack closes, call a function before a signal ends this process."""
        if os.name != "posix" or threading.current_thread() is not threading.main_thread():
            return
        self._make_report = make_report
        with uninterrupted(*OTHERS):
            asked = (*NUMBERS, *self._requests)
            numbers = [number for number in asked if signal_handler(number) == signal.SIG_DFL]
            reading, writing = self._pipe = os.pipe()
            os.set_blocking(writing, False)
            _set_wakeup(writing, only_instead_of=-1)
            process.callback(self._stop)
            for number in numbers:
                is_request = number in self._requests
                set_handler(number, self._wake_for if is_request else self._handle)
            patches = process.enter_context(Patches())
            patches.around(signal, "signal")(self._signal)
            patches.around(signal, "getsignal")(self._getsignal)
            patches.around(signal, "set_wakeup_fd")(self._set_wakeup_fd)
            _in_force.append(self)
            _thread.start_new_thread(self._watch, (reading,))

    def report(self) -> _ReportBlock:
        """A block that makes the report: a signal that arrives in it waits for its end."""
        return _ReportBlock(self)

    def begin_report(self) -> None:
        if os.getpid() != self._process:
            return
        if self._claim.locked() and self._claimed_by != _thread.get_ident():
            _wait_for_end()  # another thread makes the report
        self._reports += 1
        try:
            self._began = self._began or time.monotonic()
            if self._is_main_thread() and _holds_interrupts():
                set_handler(signal.SIGINT, self._interrupt)
        except BaseException as error:  # an interrupt
            self.end_report(error, [])
            raise

    def end_report(self, _error: BaseException | None, mark: list[None]) -> None:
        if os.getpid() != self._process:
            return
        if not mark:
            # No call comes between the two, and so no interrupt.
            self._reports -= 1
            mark += (None,)
        if self._reports:
            return
        if self._is_main_thread() and signal_handler(signal.SIGINT) == self._interrupt:
            set_handler(signal.SIGINT, signal.default_int_handler)
        if self._waiting:
            end_by(self._waiting)

    def _is_main_thread(self) -> bool:
        return _thread.get_ident() == self._main_thread

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._reports and _is_wrong_moment(frame):
            self._waiting = number
            self._wake(number)
        elif self._claims(number):
            for ending_signal in NUMBERS:
                _set_in_system(ending_signal, signal.SIG_IGN)
            self._wake(number)
            if not self._reports:
                self._end(number)
        elif time.monotonic() - self._claimed_at > _COPIES:
            end_by(number)  # a block that held signals has put this handler back

    def _claims(self, number: int) -> bool:
        if not self._claim.acquire(blocking=False):
            return False
        self._claimed_by = _thread.get_ident()
        self._claimed_at = time.monotonic()
        self._waiting = number
        return True

    def _end(self, number: int) -> NoReturn:
        try:
            self._make_report(EndedBySignal(number))
        except BaseException:
            traceback.print_exc()
        finally:
            end_by(number)

    def _wake_for(self, number: int, _frame: FrameType | None) -> None:
        self._wake(number)

    def _wake(self, number: int) -> None:
        if self._pipe is not None:
            with suppress(OSError):
                _write(self._pipe[1], bytes([number]))

    def _watch(self, reading: int) -> None:
        """The thread that waits for signals."""
        while (number := _next_number(reading, {*NUMBERS, *self._requests})) is not None:
            if number in self._requests:
                if signal_handler(number) == self._wake_for:
                    self._requests[number]()
                continue
            if not (self._waiting or signal_handler(number) == self._handle):
                continue  # the program handles it
            patience = time.monotonic() + _PATIENCE
            while not self._claim.locked() and time.monotonic() < patience:
                with suppress(OSError, ValueError):
                    signal.pthread_kill(self._main_thread, number)
                time.sleep(_PAUSE)
            if not self._claims(number):
                time.sleep(_COPIES)
            for ending_signal in NUMBERS:
                _set_in_system(ending_signal, signal.SIG_DFL)
            if self._claimed_by == _thread.get_ident() and not self._reports:
                self._end(number)
            return

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """Ctrl-C while the report is made: launchers pass on what their workers got as well."""
        if time.monotonic() - self._began > _COPIES:
            signal.default_int_handler(number, frame)

    def _stop(self) -> None:
        with uninterrupted(*OTHERS):
            _in_force.remove(self)
            pipe, self._pipe = self._pipe, None
            if pipe is None or os.getpid() != self._process:
                return
            self._forget_all()
            _set_wakeup(-1, only_instead_of=pipe[1])
            with suppress(OSError):
                _write(pipe[1], _STOP)
            os.close(pipe[1])

    def be_fork(self) -> None:
        """In a process that the program forked, signals do what they do by default."""
        self._forget_all()
        if self._pipe is not None:
            _set_wakeup(-1, only_instead_of=self._pipe[1])

    def _forget_all(self) -> None:
        _forget(self._handle)
        _forget(self._wake_for, self._requests)

    def _signal(self, original: Callable[..., Any], signalnum: int, handler: Any) -> Any:
        """Stands for ``signal.signal``."""
        is_default = isinstance(handler, int) and handler == signal.SIG_DFL
        if is_default and os.getpid() == self._process:
            if signalnum in NUMBERS:
                handler = self._handle
            elif signalnum in self._requests:
                handler = self._wake_for
        return self._as_seen(original(signalnum, handler))

    def _getsignal(self, original: Callable[..., Any], signalnum: int) -> Any:
        """Stands for ``signal.getsignal``."""
        return self._as_seen(original(signalnum))

    def _as_seen(self, handler: Any) -> Any:
        return signal.SIG_DFL if handler in (self._handle, self._wake_for) else handler

    def _set_wakeup_fd(self, original: Callable[..., int], *args: Any, **options: Any) -> int:
        """Stands for ``signal.set_wakeup_fd``."""
        before = original(*args, **options)
        return -1 if self._pipe is not None and before == self._pipe[1] else before


class _ReportBlock:
    """The block of ``EndingSignals.report``."""

    def __init__(self, signals: EndingSignals) -> None:
        self._signals = signals

    def __enter__(self) -> None:
        self._signals.begin_report()

    def _end(self, error: BaseException | None, mark: list[None]) -> None:
        self._signals.end_report(error, mark)

    if TYPE_CHECKING:

        def __exit__(self, *error: object) -> None: ...

    else:
        __exit__ = WholeExit(_end)


def signals_as_interrupts() -> WholeBlock[None]:
    """Let a signal be a Ctrl-C for the work within, and end the process by it afterwards."""
    return WholeBlock(_signals_as_interrupts, OTHERS)


def _signals_as_interrupts() -> Iterator[None]:
    interrupts = _Interrupts()
    is_main = threading.current_thread() is threading.main_thread()
    for number in NUMBERS if os.name == "posix" and is_main else ():
        if signal_handler(number) == signal.SIG_DFL:
            set_handler(number, interrupts.interrupt)
    _in_force.append(interrupts)
    try:
        yield
    finally:
        _in_force.remove(interrupts)
        interrupts.be_fork()
        if interrupts.arrived:
            end_by(interrupts.arrived)


class _Interrupts:
    """The signal that interrupted the work of this process."""

    def __init__(self) -> None:
        self.arrived = 0

    def interrupt(self, number: int, _frame: FrameType | None) -> NoReturn:
        """Interrupt the work once: another signal ends the process."""
        self.arrived = number
        _forget(self.interrupt)
        raise KeyboardInterrupt

    def be_fork(self) -> None:
        """In a fork, signals do what they do by default."""
        _forget(self.interrupt)


_in_force: list[EndingSignals | _Interrupts] = []


def _be_fork() -> None:
    for handler in _in_force:
        handler.be_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_be_fork)


def end_by(number: int) -> NoReturn:
    """End this process as a signal ends one that has no handler for it."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    _set_in_system(number, signal.SIG_DFL)
    _kill(os.getpid(), number)
    _exit(128 + number)  # the signal is blocked, or this is the first process of a container


def requests_to(work: Callable[[], None]) -> dict[int, Callable[[], None]]:
    """The signal that asks a program for its profile, and what that does; none on Windows."""
    return {int(signal.SIGUSR1): work} if hasattr(signal, "SIGUSR1") else {}


def _forget(handler: Callable[..., Any], numbers: Iterable[int] = NUMBERS) -> None:
    """Take a handler off this process."""
    for number in numbers:
        if signal_handler(number) == handler:
            set_handler(number, DEFAULT_ACTION)


def _set_wakeup(descriptor: int, *, only_instead_of: int) -> None:
    """Let Python tell of signals through a descriptor, unless an event loop has its own there."""
    before = signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)
    if before != only_instead_of:
        signal.set_wakeup_fd(before)


def _holds_interrupts() -> bool:
    return signal_handler(signal.SIGINT) is signal.default_int_handler


def _wait_for_end() -> NoReturn:
    while True:
        time.sleep(1)


def _is_wrong_moment(frame: FrameType | None) -> bool:
    return _allocator_is_busy() or _is_importing(frame) or _is_printing()


def _allocator_is_busy() -> bool:
    if active.machine is None:
        return False
    from ..simulation.inspect import allocator_is_busy

    return allocator_is_busy()


def _set_in_system(number: int, action: int) -> None:
    """Let the system take an action at a signal; Python's own function needs the main thread."""
    import ctypes

    ctypes.pythonapi.PyOS_setsig(number, ctypes.c_void_p(int(action)))


def _next_number(reading: int, numbers: Collection[int]) -> int | None:
    """The next of these signals; None if there is nothing more to wait for."""
    while True:
        for number in _read(reading, 1):
            if number == _STOP[0]:
                os.close(reading)
                return None
            if number in numbers:
                return number


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _is_printing() -> bool:
    """True if the main thread is within a call that writes to standard output or error."""
    try:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
    except RuntimeError:  # "reentrant call"
        return True
    return False
