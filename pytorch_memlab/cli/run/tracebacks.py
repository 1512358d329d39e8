"""Tracebacks of a program that was run, without the frames of this package."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import TracebackType

from ..._common.own_frames import drop_own_frames, is_own

ExceptHook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


@contextmanager
def without_own_frames(process: ExitStack) -> Iterator[None]:
    """Let an exception out as it is; until ``process`` closes it is shown without our frames.

    The interpreter shows it with ``sys.excepthook``, which may be the program's own by then, and
    ends the process as it would without us.
    """
    try:
        yield
    except BaseException:
        hook = sys.excepthook
        process.callback(setattr, sys, "excepthook", hook)
        sys.excepthook = partial(_show, hook)
        raise


def _show(
    hook: ExceptHook, kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    while trace is not None and not is_own(trace):
        trace = trace.tb_next  # who launched us
    error.__traceback__ = trace
    drop_own_frames(error)
    hook(kind, error, error.__traceback__)
