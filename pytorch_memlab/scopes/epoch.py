"""A stretch of time between the beginnings of two windows over a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .maximum import HighestRow
from .sample import PEAK

if TYPE_CHECKING:
    from .sample import Row, Sample


class Epoch:
    """A stretch of time between the beginnings of two windows.

    Args:
        base: the reading when it begins.

    Attributes:
        windows: ``id`` of those that begin with it, and are open.
    """

    __slots__ = ("base", "first", "later", "windows")

    def __init__(self, base: Sample) -> None:
        self.windows: set[int] = set()
        self.begin(base)

    def begin(self, base: Sample) -> None:
        """Begin anew.

        Args:
            base: the reading when it begins.
        """
        self.base = base
        self.first: Row | None = None
        self.later: HighestRow | None = None

    def fold(self, values: Row) -> None:
        """Take the peaks of a reading over; the first ones are never lower than the base.

        Args:
            values: as of a sample; of the entries that are no peaks nothing is asked later.
        """
        # Most epochs are those of a line, and take one reading over: that one costs nothing.
        if self.first is None:
            self.first = values
            return
        if self.later is None:
            self.later = HighestRow(self.first)
        self.later.add(values)

    def highest(self) -> Row | None:
        """The highest readings so far, None without any."""
        return self.first if self.later is None else self.later.row()

    def peak(self) -> Row:
        """Highest values so far, one for each group and pool."""
        highest = self.highest()
        return self.base.current if highest is None else highest[PEAK]
