"""Tracebacks of a program without the frames of this package."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import groupby
from types import TracebackType
from typing import TYPE_CHECKING, Final

from ..frames.user_code import FILES_OF_MODES, OWN_FOLDER
from ..interrupts.whole_exit import WholeExit
from ..text.shared_paths import shown
from .uncaught_errors import chain

_CALLING_FILES = (
    *FILES_OF_MODES,
    "<frozen importlib._bootstrap>",
    "<frozen importlib._bootstrap_external>",
)
"""Files on the way to this package: those of modes, and those that import modules."""

_FILE: Final = re.compile(r'^([ |]+File )"([^"\n]+)"', re.MULTILINE)

ExceptHook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


class without_own_frames:  # noqa: N801 - reads as a state
    """Let an exception out as it is; until ``process`` closes it is shown without our frames."""

    # The interpreter shows it with ``sys.excepthook``, which may be the program's own by then, and
    # ends the process as it would without us.

    def __init__(self, process: ExitStack) -> None:
        self._process = process

    def __enter__(self) -> None:
        pass

    def _end(self, error: BaseException | None, mark: list[None]) -> None:
        if error is None or mark:
            return
        hook = sys.excepthook
        self._process.callback(setattr, sys, "excepthook", hook)
        sys.excepthook = partial(_show, hook)
        mark.append(None)

    if TYPE_CHECKING:

        def __exit__(self, *error: object) -> None: ...

    else:
        __exit__ = WholeExit(_end)


def _show(
    hook: ExceptHook, kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    error.__traceback__ = _from_program(trace)
    drop_own_frames(error)
    hook(kind, error, error.__traceback__)


def text_of(error: BaseException) -> str:
    """The traceback of an error as it will be shown, with the paths that files show."""
    errors = list(chain(error, suppressed=True))
    traces = [error.__traceback__ for error in errors]
    try:
        error.__traceback__ = _from_program(error.__traceback__)
        drop_own_frames(error)
        text = "".join(traceback.format_exception(error))
    finally:
        for chained_error, trace in zip(errors, traces, strict=True):
            chained_error.__traceback__ = trace
    return _FILE.sub(lambda match: f'{match[1]}"{shown(match[2])}"', text)


def drop_own_frames(error: BaseException) -> None:
    """Let an error, and those that led to it, name no frame of this package."""
    for chained_error in chain(error, suppressed=True):
        chained_error.__traceback__ = _without_own(chained_error.__traceback__)


def _from_program(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of who launched us."""
    while trace is not None and not _is_own(trace):
        trace = trace.tb_next
    return trace


def _is_own(trace: TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename.startswith(OWN_FOLDER)


def _without_own(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without our frames, and without the machinery on the way to or from ours."""
    frames = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    kept: list[TracebackType] = []
    for is_machinery, group in groupby(frames, _is_machinery):
        run = list(group)
        if not (is_machinery and any(map(_is_own, run))):
            kept += run
    for frame in reversed(kept):
        trace = TracebackType(trace, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return trace


def _is_machinery(trace: TracebackType) -> bool:
    return _is_own(trace) or trace.tb_frame.f_code.co_filename.endswith(_CALLING_FILES)
