"""Axes of bytes and of events: where their marks stand."""

from __future__ import annotations

import math
from typing import Final

_MOST_BYTE_MARKS: Final = 6
_EVENT_MARKS: Final = 6


def byte_marks(highest: int) -> list[int]:
    """Sizes that an axis of bytes marks: 0 and up to six multiples of a power of two.

    >>> [mark // 2**30 for mark in byte_marks(80 * 2**30)]
    [0, 16, 32, 48, 64, 80]
    """
    step = 2 ** max(0, math.ceil(math.log2(max(highest, 1) / _MOST_BYTE_MARKS)))
    return list(range(0, highest + 1, step))


def event_marks(first: int, last: int) -> list[int]:
    """Numbers of events that an axis marks: at most seven, 1, 2 or 5 times a power of ten apart.

    >>> event_marks(0, 1000)
    [0, 200, 400, 600, 800, 1000]
    """
    rough = max((last - first) / _EVENT_MARKS, 1)
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    return list(range(math.ceil(first / step) * step, last + 1, step))
