"""Intervals between two readings, such as the hits of a line, as one row of maxima and sums."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from ..columns import OverHits, column_of
from ..memory_fields import EVENTS, FIELDS
from .row import FIELD_ORDER, ROW_FIELDS, Row, Sample, values_of

_BATCH = 16
"""Intervals merged at once: one call of numpy costs as much as a row."""

_ACCUMULATED = np.array(
    [-(name.endswith((".allocated", ".freed")) or name in EVENTS) for name in ROW_FIELDS],
    dtype=np.int64,
)
"""All bits of the fields that count from the start of an interval, no bit of the others."""


def _field(name: str) -> tuple[slice, int]:
    """The index of a field in an array of readings, which has a row for each."""
    return slice(None), ROW_FIELDS.index(name)


Measure = Callable[[Row, Row], Row]
"""Of several intervals the readings at their starts and at their ends, one below the other.

The peaks of the second are those in between. The result has one number for each interval.
"""
_MEASURED: Final[dict[str, Measure]] = {}


def _measures(column: str) -> Callable[[Measure], Measure]:
    """A column that is no field takes the maximum or the sum of this over the intervals."""
    return partial(_MEASURED.setdefault, column)


_ACTIVE = _field("active_bytes.all.current")
_ACTIVE_PEAK = _field("active_bytes.all.peak")


@_measures("temporary")
def _temporary(starts: Row, ends: Row) -> Row:
    """Active bytes above the larger of start and end, at most."""
    return np.subtract(ends[_ACTIVE_PEAK], np.maximum(starts[_ACTIVE], ends[_ACTIVE]))


_COMBINE: Final = {OverHits.MAXIMUM: np.maximum, OverHits.SUM: np.add}
_FIELDS = len(ROW_FIELDS)
_MEASURES: Final = tuple(
    (place, measure, _COMBINE[column_of(name).over_hits])
    for place, (name, measure) in enumerate(_MEASURED.items(), _FIELDS)
)
"""What is measured stands behind the fields in a merged row."""
_SUMS: Final = tuple(place for place, _, combine in _MEASURES if combine is np.add)

_LEAST = [-(name == "max_split_size") for name in ROW_FIELDS]  # whose -1 is no limit
_NO_INTERVAL: Row = np.array([*_LEAST, *(0 for _ in _MEASURED)], dtype=np.int64)
"""The row of none. Nothing writes to it."""

_Shared = dict[tuple[object, ...], dict[str, int]]
"""The fields of intervals that were added up already, by the row and the readings."""


class HighestInterval:
    """The entrywise maximum of intervals; what was allocated and freed counts from their start."""

    # Any thread adds, and any thread reads, without waiting. So the row of the merged intervals
    # stands in one list with those that are not merged yet, before them: at every moment the list
    # has each interval once. One thread at a time merges.

    __slots__ = ("_intervals", "_is_merging", "_lock")

    def __init__(self) -> None:
        self._intervals: list[Any] = [_NO_INTERVAL]  # a Row, then pairs of bytes
        self._lock = threading.RLock()
        self._is_merging = False

    def add(self, start: Sample, end: Sample) -> None:
        """Add an interval by its two readings; the peaks of the second are those in between."""
        intervals = self._intervals
        intervals.append((start.row, end.row))
        if len(intervals) > _BATCH:
            self._merge()

    def stats(self, shared: _Shared | None = None) -> dict[str, int]:
        """The maximum of each of ``FIELDS`` so far, 0 without any interval, and what is measured.

        Those with the same readings have one dictionary together, if they share ``shared``.
        """
        row, *others = self._intervals.copy()
        key = (row.tobytes(), *others)
        stats_by_key = {} if shared is None else shared
        stats = stats_by_key.get(key)
        if stats is None:
            merged = _with_intervals(row, others)
            stats = dict(zip(FIELDS, merged[FIELD_ORDER].tolist(), strict=True))
            stats.update(zip(_MEASURED, merged[_FIELDS:].tolist(), strict=True))
            stats_by_key[key] = stats
        return stats

    def _merge(self) -> None:
        with self._lock:
            if self._is_merging:  # a finalizer or a signal's handler, in the middle of a merge
                return
            try:
                self._is_merging = True
                intervals = self._intervals
                count = len(intervals)
                intervals[:count] = [_with_intervals(intervals[0], intervals[1:count])]
            finally:
                self._is_merging = False


def _with_intervals(row: Row, intervals: list[tuple[bytes, bytes]]) -> Row:
    if not intervals:
        return row
    starts = values_of(*[start for start, _ in intervals]).reshape(len(intervals), -1)
    ends = values_of(*[end for _, end in intervals]).reshape(len(intervals), -1)
    highest: Row = np.empty_like(row)
    # Without the wrapper that ``max`` is: every profiled line pays for this.
    np.maximum.reduce(ends - (starts & _ACCUMULATED), axis=0, out=highest[:_FIELDS])
    for place, measure, combine in _MEASURES:
        highest[place] = combine.reduce(measure(starts, ends))
    sums = [(place, row[place] + highest[place]) for place in _SUMS]
    np.maximum(row, highest, out=highest)
    for place, total in sums:
        highest[place] = total
    return highest
