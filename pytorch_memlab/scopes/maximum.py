"""Running maxima of rows, merged in batches because one numpy call costs as much as a sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..memory_fields import METRICS
from .sample import FIELDS

if TYPE_CHECKING:
    from .sample import Row, Sample

_BATCH = 16

_ACCUMULATED = np.array([metric in ("allocated", "freed") for metric in METRICS], dtype=np.int64)
_ACCUMULATED = np.tile(_ACCUMULATED, len(FIELDS) // len(METRICS))


class HighestRow:
    """The entrywise maximum of all rows added; it holds a few of them at the most.

    Args:
        row: the first one.
    """

    __slots__ = ("_rows",)

    def __init__(self, row: Row) -> None:
        self._rows = [row]

    def add(self, row: Row) -> None:
        """Take a row over."""
        rows = self._rows
        rows.append(row)
        if len(rows) > _BATCH:
            self._rows = [_highest(rows)]

    def row(self) -> Row:
        """The maximum so far."""
        if len(self._rows) > 1:
            self._rows = [_highest(self._rows)]
        return self._rows[0]


class HighestInterval:
    """The entrywise maximum of intervals; what was allocated and freed counts from their start."""

    __slots__ = ("_ends", "_row", "_starts")

    def __init__(self) -> None:
        self._row: Row = np.zeros(len(FIELDS), dtype=np.int64)
        self._starts: list[Row] = []
        self._ends: list[Row] = []

    def add(self, start: Sample, end: Sample) -> None:
        """Take an interval over.

        Args:
            start: reading when it began.
            end: reading when it ended, with the peaks in between.
        """
        ends = self._ends
        ends.append(end.values)
        self._starts.append(start.values)
        if len(ends) >= _BATCH:
            self.row()

    def row(self) -> Row:
        """The maximum so far, 0 without any interval."""
        if self._ends:
            # Another thread may add while this one merges: only what is taken here is dropped.
            count = len(self._ends)
            ends = np.concatenate(self._ends[:count]).reshape(count, -1)
            starts = np.concatenate(self._starts[:count]).reshape(count, -1)
            intervals = ends - starts * _ACCUMULATED
            self._row = np.maximum(self._row, intervals.max(axis=0))
            del self._ends[:count], self._starts[:count]
        return self._row


def _highest(rows: list[Row]) -> Row:
    highest: Row = np.concatenate(rows).reshape(len(rows), -1).max(axis=0)
    return highest
