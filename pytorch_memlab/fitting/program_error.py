"""The error that the program of a trial ended with."""

from __future__ import annotations

import sys
import traceback
from typing import Final

import torch

from .._common.frames.user_code import is_of_user
from .._common.process.own_frames import drop_own_frames
from .._common.process.uncaught_errors import chain
from ..errors import HostMemoryError
from ..history.model import Frame
from .trial import TrialError

ENDED_ITSELF: Final = "the program ended with exit status"
"""Beginning of the error of a program that itself said what is wrong."""


def exit_text(code: object) -> str:
    """The end of a program that says how it ended; a message is printed, as Python does it."""
    if isinstance(code, int):
        return f"{ENDED_ITSELF} {code}\n"
    print(code, file=sys.stderr)
    return f"{ENDED_ITSELF} 1: {code}\n"


def problem_of(error: BaseException, message: str) -> TrialError:
    """An error in short, with the innermost line of the program that it came through."""
    places = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    frames = [
        Frame(code.co_filename, line, code.co_name)
        for code, line in places
        if is_of_user(code.co_filename)
    ]
    return TrialError(message, frames[-1] if frames else None)


def traceback_of(error: BaseException) -> str:
    """The traceback of the program; that of this package for an error in it alone."""
    whole = error.__traceback__
    drop_own_frames(error)
    return "".join(traceback.format_exception(type(error), error, error.__traceback__ or whole))


def is_out_of_memory(error: BaseException, *, is_limited: bool) -> bool:
    """True if an exception is, or comes from, an out-of-memory error of a GPU."""
    # A GPU without limit has what this machine can map.
    kinds = (torch.OutOfMemoryError, *(() if is_limited else (HostMemoryError,)))
    return any(isinstance(chained_error, kinds) for chained_error in chain(error, suppressed=True))
