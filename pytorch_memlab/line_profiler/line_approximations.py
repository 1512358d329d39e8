"""Approximations of a line, over all its hits."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

_lock = threading.RLock()
"""Of all additions, which are rare: two threads may add to one line."""

if TYPE_CHECKING:
    from ..devices import Approximations
    from ..records import Approximation, ApproximationKey


class LineApproximations:
    """The approximations of one line; they grow with the number of ops, not of calls."""

    __slots__ = ("_sums",)

    def __init__(self) -> None:
        self._sums: dict[ApproximationKey, Approximation] = {}

    def add(self, start: Approximations, end: Approximations) -> None:
        """Add an interval by all approximations of the device when it began and ended."""
        sums = self._sums
        for key, approximation in end.items():
            before = start.get(key)
            if approximation is not before:
                new = approximation if before is None else approximation.minus(before)
                with _lock:
                    known = sums.get(new.key)
                    sums[new.key] = new if known is None else known + new

    def all(self) -> tuple[Approximation, ...]:
        """All so far, in the order in which they first happened."""
        return tuple(self._sums.copy().values())
