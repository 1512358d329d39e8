"""The frames that the threads of this process are in."""

from __future__ import annotations

import sys
from types import FrameType

from .garbage_collection import no_garbage_collection


def thread_frames() -> dict[int, FrameType]:
    """The innermost frame of each thread, by the thread's ident.

    Until Python 3.11 a garbage collection may begin while the interpreter holds the lock on its
    list of threads, and the process hangs: python/cpython issue 106883.
    """
    if sys.version_info >= (3, 12):
        return sys._current_frames()
    with no_garbage_collection():
        return sys._current_frames()
