"""Running maxima of rows, merged in batches because one numpy call costs as much as a sample."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from ..memory_fields import EVENTS, FIELDS

if TYPE_CHECKING:
    from .sample import Row, Sample

_BATCH = 16

_ACCUMULATED = np.array(
    [name.endswith((".allocated", ".freed")) or name in EVENTS for name in FIELDS], dtype=np.int64
)
_LEAST = np.array([-(name == "max_split_size") for name in FIELDS], dtype=np.int64)
"""The least value of each field: -1 is no limit."""

_ACTIVE = FIELDS.index("active_bytes.all.current")
_ACTIVE_PEAK = FIELDS.index("active_bytes.all.peak")


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
    """The entrywise maximum of intervals; what was allocated and freed counts from their start.

    The last entry is how far the active bytes went above the larger of their start and end.

    Any thread adds, and any thread reads, without waiting: the maximum is at every moment that of
    the merged row and of the intervals that are not merged yet. One thread at a time merges.
    """

    __slots__ = ("_is_merging", "_lock", "_pending", "_row")

    def __init__(self) -> None:
        self._row: Row = np.append(_LEAST, 0)
        self._pending: list[tuple[Row, Row]] = []
        self._lock = threading.RLock()
        self._is_merging = False

    def add(self, start: Sample, end: Sample) -> None:
        """Take an interval over.

        Args:
            start: reading when it began.
            end: reading when it ended, with the peaks in between.
        """
        pending = self._pending
        pending.append((start.values, end.values))
        if len(pending) >= _BATCH:
            self._merge()

    def row(self) -> Row:
        """The maximum of each field so far, 0 without any interval."""
        return self._now()[:-1]

    def temporary(self) -> int:
        """The most bytes that an interval had in use beyond those of its start and its end."""
        return int(self._now()[-1])

    def _now(self) -> Row:
        # In this order: what a merge takes out of the list is in the row by then.
        pending = self._pending.copy()
        return _with_intervals(self._row, pending)

    def _merge(self) -> None:
        with self._lock:
            if self._is_merging:  # a finalizer or a signal's handler, in the middle of a merge
                return
            try:
                self._is_merging = True
                merged = self._pending.copy()
                self._row = _with_intervals(self._row, merged)
                del self._pending[: len(merged)]
            finally:
                self._is_merging = False


def _with_intervals(row: Row, intervals: list[tuple[Row, Row]]) -> Row:
    if not intervals:
        return row
    starts = np.concatenate([start for start, _ in intervals]).reshape(len(intervals), -1)
    ends = np.concatenate([end for _, end in intervals]).reshape(len(intervals), -1)
    temporary = ends[:, _ACTIVE_PEAK] - np.maximum(starts[:, _ACTIVE], ends[:, _ACTIVE])
    # In place and without the wrapper that ``max`` is: every profiled line pays for this.
    starts *= _ACCUMULATED
    ends -= starts
    highest: Row = np.empty_like(row)
    np.maximum.reduce(ends, axis=0, out=highest[:-1])
    highest[-1] = np.maximum.reduce(temporary)
    return np.maximum(row, highest, out=highest)


def _highest(rows: list[Row]) -> Row:
    highest: Row = np.concatenate(rows).reshape(len(rows), -1).max(axis=0)
    return highest
