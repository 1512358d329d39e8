"""The frames that the threads of this process are in."""

from __future__ import annotations

import gc
import sys
from types import FrameType


def thread_frames() -> dict[int, FrameType]:
    """The innermost frame of each thread, by the thread's ident."""
    # Until Python 3.11 a garbage collection may begin while the interpreter holds the lock on its
    # list of threads, and the process hangs: python/cpython issue 106883.
    if sys.version_info >= (3, 12):
        return sys._current_frames()
    collects = gc.isenabled()  # see Note [Collections that are off]
    try:
        if collects:
            gc.disable()  # by no function in Python: a tracer beside ours would be told of its call
        return sys._current_frames()
    finally:
        if collects:
            gc.enable()
