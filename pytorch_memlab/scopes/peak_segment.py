"""A stretch of time between the beginnings of two windows over a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .row import PEAK, highest_row, values_of

if TYPE_CHECKING:
    from .row import Row
    from .sample import Sample

_BATCH = 64


class PeakSegment:
    """The readings between the beginnings of two windows; it holds a few of them at the most."""

    __slots__ = ("base", "rows", "windows")

    def __init__(self, base: Sample) -> None:
        self.windows: set[int] = set()  # ``id`` of the open ones that begin with it
        self.base = base  # the reading when it begins
        self.rows: list[bytes] = []

    def begin(self, base: Sample) -> None:
        """Begin again with this reading."""
        self.base = base
        self.rows = []

    def merge_peaks(self, row: bytes) -> None:
        """Add a reading; of its values that are no peaks nothing is asked later."""
        rows = self.rows
        rows.append(row)
        if len(rows) > _BATCH:
            self.rows = [highest_row(rows)]

    def merged(self) -> list[bytes]:
        """The highest values of all readings as one row, none without any."""
        if len(self.rows) > 1:
            self.rows = [highest_row(self.rows)]
        return self.rows

    def peak(self) -> Row:
        """Highest values so far, one for each group and pool; never below the base."""
        rows = self.merged()
        return values_of(rows[0])[PEAK] if rows else self.base.current
