"""Room on Python's stack for work that must not stop half way.

A program that recurses without end comes to Python's limit wherever its last call happens to be.
Memory of a GPU is counted by C++, which has another stack; here it is counted by Python, which
would stop between two counters. `check_room` fails before such work begins, with the error that
the program's own next call would raise.
"""

from __future__ import annotations

import sys
from typing import Any, Final

_C_CALLS: Final = 20
"""Nested calls of C: more than are nested between two calls of Python here."""

_OP_CALLS: Final = 60
"""More calls than are nested while the memory of an op is allocated."""


def _nested(depth: int) -> tuple[Any, ...]:
    return (_nested(depth - 1),) if depth else ()


_CLASSES: Final = _nested(_C_CALLS)
_MANY_CLASSES: Final = _nested(_OP_CALLS)


def _call_1() -> None:
    """A call."""


def _call_2() -> None:
    _call_1()


def _call_3() -> None:
    _call_2()


def _call_4() -> None:
    _call_3()


def _call_5() -> None:
    _call_4()


def _call_6() -> None:
    _call_5()


def _call_7() -> None:
    _call_6()


def _call_8() -> None:
    _call_7()


def _check_in_c() -> None:
    """One limit counts calls of Python and of C, up to Python 3.11."""
    isinstance(None, _CLASSES)


def _check_both() -> None:
    isinstance(None, _CLASSES)
    _call_8()


check_room: Final = _check_in_c if sys.version_info < (3, 12) else _check_both
"""Raises RecursionError if eight more calls of Python, or the usual ones of C, have no room."""


def check_room_of_op() -> None:
    """Raises RecursionError if the memory of an op could not be allocated."""
    # It is for ops that change what there is, such as the size of a storage, before they allocate.
    isinstance(None, _MANY_CLASSES)
    if sys.version_info >= (3, 12):
        _descend(_OP_CALLS)


def _descend(calls: int) -> None:
    if calls:
        _descend(calls - 1)
