"""Tracebacks of a program that was run, without the frames of this package."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import groupby
from types import TracebackType

import pytorch_memlab

_CALLING_FILES = (
    os.path.join("torch", "_ops.py"),
    os.path.join("torch", "overrides.py"),
    os.path.join("torch", "utils", "_python_dispatch.py"),
    "<frozen importlib._bootstrap>",
    "<frozen importlib._bootstrap_external>",
)
"""Files on the way between torch and the modes of a simulation, and those that import modules."""
_OWN_FOLDER = os.path.join(os.path.dirname(str(pytorch_memlab.__file__)), "")


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
    while trace is not None and not _is_own(trace):
        trace = trace.tb_next  # who launched us
    error.__traceback__ = trace
    _clean(error, set())
    hook(kind, error, error.__traceback__)


def _clean(error: BaseException | None, done: set[int]) -> None:
    """Take our frames out of an exception and of those that it came from."""
    if error is None or id(error) in done:
        return
    done.add(id(error))
    error.__traceback__ = _without_own(error.__traceback__)
    for other in (error.__cause__, error.__context__, *getattr(error, "exceptions", ())):
        _clean(other, done)


def _without_own(trace: TracebackType | None) -> TracebackType | None:
    frames = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    rest: TracebackType | None = None
    for frame in reversed(_foreign(frames)):
        rest = TracebackType(rest, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return rest


def _foreign(frames: list[TracebackType]) -> list[TracebackType]:
    """The frames that are neither ours nor of the machinery on the way to or from ours."""
    kept: list[TracebackType] = []
    for is_machinery, group in groupby(
        frames, lambda frame: _is_own(frame) or _leads_to_own(frame)
    ):
        run = list(group)
        if not (is_machinery and any(map(_is_own, run))):
            kept += run
    return kept


def _is_own(trace: TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename.startswith(_OWN_FOLDER)


def _leads_to_own(trace: TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename.endswith(_CALLING_FILES)
