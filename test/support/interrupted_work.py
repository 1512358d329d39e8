"""Work that a signal interrupts at each place where Python may run its handler."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(BaseException):
    """The error that the handler raises."""


@contextmanager
def interrupts_raise() -> Iterator[None]:
    """Let SIGUSR1 raise ``Interrupted``; its handler must be there at the end."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    yield
    assert signal.signal(signal.SIGUSR1, before) is interrupt


def interrupt_at(
    place: int, work: Callable[[], object], *, outside: Collection[str] = ()
) -> tuple[int, bool]:
    """Let a signal arrive at a place where Python may run handlers.

    Args:
        place: its number, from 1 on.
        work: what is interrupted.
        outside: names of files and functions whose own places do not count.

    Returns:
        The places that there were up to there, and whether it was raised.
    """
    passed, raised = 0, False
    skipped = {__file__, *outside}

    def profile(frame: FrameType, event: str, _arg: object) -> None:
        nonlocal passed
        code = frame.f_code
        if event in ("call", "c_return") and not skipped & {code.co_filename, code.co_name}:
            passed += 1
            if passed == place:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGUSR1)

    sys.setprofile(profile)
    try:
        work()
    except Interrupted:
        raised = True
    finally:
        sys.setprofile(None)
    return passed, raised


def each_place(
    work: Callable[[], object], step: int = 1, *, outside: Collection[str] = ()
) -> Iterator[int]:
    """Interrupt some work at one place after the other."""
    place = 1
    while True:
        passed, _ = interrupt_at(place, work, outside=outside)
        yield place
        if passed < place:
            return
        place += step
