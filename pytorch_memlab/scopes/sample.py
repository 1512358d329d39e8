"""One reading of a device's counters, as a row of ints."""

from __future__ import annotations

from array import array
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from ..devices.device import GROUPS, METRICS, POOLS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from ..devices import Stats

    Row = npt.NDArray[np.int64]

FIELDS = tuple(
    f"{group}.{pool}.{metric}" for group in GROUPS for pool in POOLS for metric in METRICS
)
"""Names of a row's entries."""

CURRENT = slice(METRICS.index("current"), None, len(METRICS))
PEAK = slice(METRICS.index("peak"), None, len(METRICS))
ALLOCATED_BYTES = FIELDS.index("allocated_bytes.all.current")

_ACCUMULATED = np.array([metric in ("allocated", "freed") for metric in METRICS], dtype=np.int64)
_ACCUMULATED = np.tile(_ACCUMULATED, len(FIELDS) // len(METRICS))

_groups = itemgetter(*GROUPS)

Activity = tuple[int, ...]
"""Counters that tell whether anything happened between two readings."""

NEVER: Activity = ()
"""The activity of a device that was never read, unlike that of any reading."""


class Sample:
    """A reading.

    Args:
        values: int64, one entry for each of ``FIELDS``; peaks are those since the last reset.
    """

    __slots__ = ("_accumulated", "allocated", "values")

    def __init__(self, values: Row) -> None:
        self.values = values
        self.allocated = int(values[ALLOCATED_BYTES])
        self._accumulated: Row | None = None

    @property
    def current(self) -> Row:
        """Current values, one for each group and pool."""
        return self.values[CURRENT]

    @property
    def peak(self) -> Row:
        """Peaks since the last reset, one for each group and pool."""
        return self.values[PEAK]

    @property
    def accumulated(self) -> Row:
        """What was allocated and freed so far, and 0 for current values and peaks."""
        if self._accumulated is None:
            self._accumulated = self.values * _ACCUMULATED
        return self._accumulated

    def at_rest(self) -> Sample:
        """What the next reading gives if nothing happens after a reset of the peaks."""
        return self.with_peak(self.current)

    def with_peak(self, peak: Row) -> Sample:
        """This reading with other peaks.

        Args:
            peak: one for each group and pool.
        """
        values = self.values.copy()
        values[PEAK] = peak
        return Sample(values)


ZERO = Sample(np.zeros(len(FIELDS), dtype=np.int64))
"""The reading of a device on which nothing was ever allocated."""


def read_activity(stats: Stats) -> Activity:
    """What to compare with the previous reading: equal means that nothing happened.

    Args:
        stats: nested counters, not empty.

    Returns:
        accumulated counts, which only grow, and the active bytes with their peak, which tell
        of a reset of the accumulated ones in between.
    """
    allocation = stats["allocation"]["all"]
    active_bytes = stats["active_bytes"]["all"]
    return (
        allocation["allocated"],
        allocation["freed"],
        stats["active"]["all"]["freed"],
        stats["reserved_bytes"]["all"]["freed"],
        active_bytes["current"],
        active_bytes["peak"],
    )


def resting(activity: Activity) -> Activity:
    """The activity that the next reading has if nothing happens after a reset of the peaks."""
    return (*activity[:-1], activity[-2])


def is_ordered(stats: Stats) -> bool:
    """Whether counters come in the order of ``FIELDS``, so that no name must be looked up."""
    group = stats["active_bytes"]
    return tuple(group) == POOLS and tuple(group["all"]) == METRICS


def row_in_order(stats: Stats) -> Row:
    """The row of a reading whose counters come in order."""
    flat = [
        value for pools in _groups(stats) for metrics in pools.values() for value in metrics.values()
    ]
    return np.frombuffer(array("q", flat), dtype=np.int64)


def row_by_name(stats: Stats) -> Row:
    """The row of any reading; what a device does not count is 0."""
    row = [
        stats.get(group, {}).get(pool, {}).get(metric, 0)
        for group in GROUPS
        for pool in POOLS
        for metric in METRICS
    ]
    return np.array(row, dtype=np.int64)


def replace_peaks(stats: Stats, peak: Row) -> Stats:
    """Nested counters with other peaks.

    Args:
        stats: nested counters.
        peak: one for each group and pool.

    Returns:
        a copy, in which everything else is as it was.
    """
    answer: dict[str, Any] = dict(stats)
    peaks = iter(peak.tolist())
    for group in GROUPS:
        pools: Mapping[str, Any] = stats.get(group, {})
        raised = {pool: next(peaks) for pool in POOLS}
        answer[group] = {
            pool: {**metrics, "peak": raised.get(pool, metrics["peak"])}
            for pool, metrics in pools.items()
        }
    return answer


def nest_peaks(peak: Row) -> Stats:
    """Peaks alone, nested as counters are.

    Args:
        peak: one for each group and pool.
    """
    values = iter(peak.tolist())
    return {group: {pool: {"peak": next(values)} for pool in POOLS} for group in GROUPS}
