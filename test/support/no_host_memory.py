"""Work for which Python has no memory at one place."""

from __future__ import annotations

import _testcapi
import os
import sys
import traceback
import warnings
from collections.abc import Callable


def fails_at(place: int, count: int, work: Callable[[], object]) -> bool:
    """Do some work while Python's allocations fail, from one on; False if it needs fewer.

    Args:
        place: how many allocations succeed.
        count: how many fail then. All that follow cannot: where Python has no memory for the
            number of an instruction, it tries again without end.
        work: what is done.
    """
    try:
        _testcapi.set_nomemory(place, place + count)
        work()
    except (MemoryError, SystemError):  # SystemError where C++ does not look for errors
        return True
    finally:
        _testcapi.remove_mem_hooks()
    return False


def in_fork(work: Callable[[], object]) -> None:
    """Do some work where no other thread runs, which would have no memory either."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        child = os.fork()
    if not child:
        status = 1
        sys.unraisablehook = lambda _: None  # pytest's holds the frames of errors in finalizers
        try:
            work()
            status = 0
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
