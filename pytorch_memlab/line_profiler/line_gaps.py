"""What a simulation did in a line without knowing all of it, over all hits of the line."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

_lock = threading.RLock()
"""Of all additions, which are rare: two threads may add to one line."""

if TYPE_CHECKING:
    from ..devices import Gaps
    from ..records import Gap, Subject


class LineGaps:
    """The gaps of one line; they grow with the number of ops, not of calls."""

    __slots__ = ("_sums",)

    def __init__(self) -> None:
        self._sums: dict[Subject, Gap] = {}

    def add(self, start: Gaps, end: Gaps) -> None:
        """Take an interval over.

        Args:
            start: all gaps of the device when it began.
            end: all when it ended.
        """
        sums = self._sums
        for key, gap in end.items():
            before = start.get(key)
            if gap is not before:
                new = gap if before is None else gap.since(before)
                with _lock:
                    known = sums.get(new.subject)
                    sums[new.subject] = new if known is None else known + new

    def all(self) -> tuple[Gap, ...]:
        """All so far, in the order in which they first happened."""
        return tuple(self._sums.copy().values())
