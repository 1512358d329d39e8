"""One reading of a device's counters, as a row of ints."""

from __future__ import annotations

from itertools import product
from struct import Struct
from typing import TYPE_CHECKING, Any

import numpy as np

from ..devices import NO_APPROXIMATIONS
from ..memory_fields import (
    EVENTS,
    FIELDS,
    FIELDS_WITH_METRICS,
    GROUPS,
    METRICS,
    OVERSIZE_GROUPS,
    POOL_FIELDS,
    POOLS,
    SETTINGS,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from ..devices import Approximations, Stats

    Row = npt.NDArray[np.int64]

CURRENT = slice(METRICS.index("current"), len(FIELDS_WITH_METRICS), len(METRICS))
PEAK = slice(METRICS.index("peak"), len(FIELDS_WITH_METRICS), len(METRICS))

_INT64 = np.dtype(np.int64)


def _compile_row_maker() -> Callable[[Stats], bytes]:
    """A function that looks every field up by its name, written out field by field.

    A sample is taken at every profiled line. Written out, the interpreter knows each key; a loop
    over the names takes three times as long.
    """
    lines = ["def row(stats):"]
    for number, (group, pool) in enumerate(product(GROUPS, POOLS)):
        lines.append(f"    m{number} = stats[{group!r}][{pool!r}]")
    for number, group in enumerate(OVERSIZE_GROUPS, len(POOL_FIELDS) // 4):
        lines.append(f"    m{number} = stats[{group!r}]")
    values = [f"m{i // 4}[{METRICS[i % 4]!r}]" for i in range(len(FIELDS_WITH_METRICS))]
    lines.append("    get = stats.get")
    values += [f"get({name!r}, 0)" for name in (*EVENTS, *SETTINGS)]
    lines.append(f"    return pack({', '.join(values)})")
    namespace: dict[str, Any] = {"pack": Struct(f"={len(FIELDS)}q").pack}
    exec("\n".join(lines), namespace)  # noqa: S102 - made of the constants above alone
    made: Callable[[Stats], bytes] = namespace["row"]
    return made


_pack_row = _compile_row_maker()

Activity = tuple[Any, ...]
"""Counters that tell whether anything happened between two readings."""

NEVER: Activity = ()
"""The activity of a device that was never read, unlike that of any reading."""


class Sample:
    """A reading.

    Args:
        values: int64, one entry for each of ``FIELDS``; peaks are those since the last reset.
        allocated: bytes allocated now.
        approximations: what the device did so far without knowing all of it.
    """

    __slots__ = ("allocated", "approximations", "values")

    def __init__(
        self, values: Row, allocated: int, approximations: Approximations = NO_APPROXIMATIONS
    ) -> None:
        self.values = values
        self.allocated = allocated
        self.approximations = approximations

    @property
    def current(self) -> Row:
        """Current values, one for each group and pool, then for each group without pools."""
        return self.values[CURRENT]

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
        return Sample(values, self.allocated, self.approximations)


ZERO = Sample(np.zeros(len(FIELDS), dtype=np.int64), 0)
"""The reading of a device on which nothing was ever allocated."""


def read_activity(stats: Stats) -> Activity:
    """What to compare with the previous reading: equal means that nothing happened.

    Args:
        stats: nested counters, not empty.

    Returns:
        accumulated counts, which only grow, and the active bytes with their peak, which tell
        of a reset of the accumulated ones in between. An allocation that fails counts too.
    """
    allocation = stats["allocation"]["all"]
    active_bytes = stats["active_bytes"]["all"]
    return (
        stats.get("num_ooms"),
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


def row_of(stats: Stats) -> Row:
    """A reading as a row; what a device does not count is 0.

    Args:
        stats: nested counters.
    """
    try:
        return np.frombuffer(_pack_row(stats), _INT64)
    except KeyError:
        row = [
            stats.get(group, {}).get(pool, {}).get(metric, 0)
            for group, pool, metric in product(GROUPS, POOLS, METRICS)
        ]
        row += [
            stats.get(group, {}).get(metric, 0)
            for group, metric in product(OVERSIZE_GROUPS, METRICS)
        ]
        row += [stats.get(name, 0) for name in (*EVENTS, *SETTINGS)]
        return np.array(row, _INT64)


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
    for group in OVERSIZE_GROUPS:
        raised_peak = next(peaks)
        if group in stats:
            answer[group] = {**stats[group], "peak": raised_peak}
    return answer


def nest_peaks(peak: Row) -> Stats:
    """Peaks alone, nested as counters are.

    Args:
        peak: one for each group and pool.
    """
    values = iter(peak.tolist())
    nested: Stats = {group: {pool: {"peak": next(values)} for pool in POOLS} for group in GROUPS}
    return nested | {group: {"peak": next(values)} for group in OVERSIZE_GROUPS}
