"""Running maxima of intervals, merged in batches because one numpy call costs as much as a row."""

from __future__ import annotations

import threading

import numpy as np

from ..memory_fields import EVENTS
from .row import FIELD_ORDER, ROW_FIELDS, Row, Sample, values_of

_BATCH = 16

_ACCUMULATED = np.array(
    [-(name.endswith((".allocated", ".freed")) or name in EVENTS) for name in ROW_FIELDS],
    dtype=np.int64,
)
"""All bits of the fields that count from the start of an interval, no bit of the others."""

_LEAST = np.array([-(name == "max_split_size") for name in ROW_FIELDS], dtype=np.int64)
"""The least value of each field: -1 is no limit."""

_ACTIVE = ROW_FIELDS.index("active_bytes.all.current")
_ACTIVE_PEAK = ROW_FIELDS.index("active_bytes.all.peak")


class HighestInterval:
    """The entrywise maximum of intervals; what was allocated and freed counts from their start."""

    # Any thread adds, and any thread reads, without waiting: the maximum is at every moment that of
    # the merged row and of the intervals that are not merged yet. One thread at a time merges.

    __slots__ = ("_is_merging", "_lock", "_pending", "_row")

    def __init__(self) -> None:
        # The last entry is how far the active bytes went above the larger of start and end.
        self._row: Row = np.append(_LEAST, 0)
        self._pending: list[tuple[bytes, bytes]] = []
        self._lock = threading.RLock()
        self._is_merging = False

    def add(self, start: Sample, end: Sample) -> None:
        """Add an interval by its two readings; the peaks of the second are those in between."""
        pending = self._pending
        pending.append((start.row, end.row))
        if len(pending) >= _BATCH:
            self._merge()

    def values(self) -> Row:
        """The maximum of each of ``FIELDS`` so far, 0 without any interval."""
        values: Row = self._now()[FIELD_ORDER]
        return values

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


def _with_intervals(row: Row, intervals: list[tuple[bytes, bytes]]) -> Row:
    if not intervals:
        return row
    starts = values_of(*[start for start, _ in intervals]).reshape(len(intervals), -1)
    ends = values_of(*[end for _, end in intervals]).reshape(len(intervals), -1)
    temporary = ends[:, _ACTIVE_PEAK] - np.maximum(starts[:, _ACTIVE], ends[:, _ACTIVE])
    # Without the wrapper that ``max`` is: every profiled line pays for this.
    highest: Row = np.empty_like(row)
    np.maximum.reduce(ends - (starts & _ACCUMULATED), axis=0, out=highest[:-1])
    highest[-1] = np.maximum.reduce(temporary)
    return np.maximum(row, highest, out=highest)
