"""A reading of the counters of a device, as one row of int64.

A reading is taken at every profiled line, so rows are made in parts. A part in whose memory nothing
happened since the last reading has the same bytes again: the segments in most readings, and the
pool from which the line took nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import product
from struct import Struct
from typing import Any

import numpy as np

from ..devices import NO_APPROXIMATIONS, Approximations, Stats
from ..memory_fields import EVENTS, FIELDS, GROUPS, METRICS, OVERSIZE_GROUPS, POOLS, SETTINGS

Row = np.ndarray[Any, np.dtype[np.int64]]
Path = tuple[str, str | None]

_SEGMENT_GROUPS = ("segment", "reserved_bytes")
_BLOCK_GROUPS = tuple(group for group in GROUPS if group not in _SEGMENT_GROUPS)

# Groups with their pools, in the order of a row, part for part.
_ALL: tuple[Path, ...] = tuple((group, "all") for group in _BLOCK_GROUPS)
_SMALL: tuple[Path, ...] = tuple((group, "small_pool") for group in _BLOCK_GROUPS)
_LARGE: tuple[Path, ...] = (
    *((group, "large_pool") for group in _BLOCK_GROUPS),
    *((group, None) for group in OVERSIZE_GROUPS),  # whose blocks are large
)
_SEGMENTS: tuple[Path, ...] = tuple(product(_SEGMENT_GROUPS, POOLS))
_WITHOUT_METRICS = (*EVENTS, *SETTINGS)

PATHS: tuple[Path, ...] = (*_ALL, *_SMALL, *_LARGE, *_SEGMENTS)
ROW_FIELDS = (
    *(".".join(filter(None, (*path, metric))) for path, metric in product(PATHS, METRICS)),
    *_WITHOUT_METRICS,
)
"""The fields in the order of a row. Those without metrics are at the end."""

_WITH_METRICS = len(PATHS) * len(METRICS)
CURRENT = slice(METRICS.index("current"), _WITH_METRICS, len(METRICS))
PEAK = slice(METRICS.index("peak"), _WITH_METRICS, len(METRICS))
"""The current values and the peaks of a row, one for each of ``PATHS``."""

FIELD_ORDER = np.array([ROW_FIELDS.index(name) for name in FIELDS])
"""The places of the public ``FIELDS`` in a row."""

_INT64 = np.dtype(np.int64)

Fingerprint = tuple[Any, ...]
"""Counters that tell whether anything happened between two readings."""

UNREAD: Fingerprint = ()


def values_of(*rows: bytes) -> Row:
    """Rows as an array, one after the other."""
    return np.frombuffer(rows[0] if len(rows) == 1 else b"".join(rows), _INT64)


def highest_row(rows: list[bytes]) -> bytes:
    highest: bytes = values_of(*rows).reshape(len(rows), -1).max(axis=0).tobytes()
    return highest


def fingerprint(stats: Stats, pool: str) -> Fingerprint:
    """Two equal ones mean that nothing happened in a pool between two readings."""
    # Accumulated counts only grow; the active bytes tell of a reset of these in between.
    allocation = stats["allocation"][pool]
    active_bytes = stats["active_bytes"][pool]
    current = active_bytes["current"]
    return (
        stats.get("num_ooms"),
        allocation["allocated"],
        allocation["freed"],
        stats["active"][pool]["freed"],
        stats["reserved_bytes"][pool]["freed"],
        current,
        active_bytes["peak"] == current,
    )


def after_reset(fingerprint: Fingerprint) -> Fingerprint:
    """The fingerprint of the next reading if nothing happens after a reset of the peaks."""
    return fingerprint if fingerprint[-1] else (*fingerprint[:-1], True)


class RowMaker:
    """Makes the rows of one device, whose peaks are reset after each of them."""

    __slots__ = ("_large", "_pack_all", "_pack_others", "_segments", "_small")

    def __init__(self) -> None:
        self._pack_all, small, large, segments = _packers()
        self._pack_others = _others_packer(_WITHOUT_METRICS)
        self._small = _Part(small)
        self._large = _Part(large)
        self._segments = _Part(segments)

    def begin(self, stats: Stats) -> None:
        """Nothing is known of a reading before this one."""
        self._pack_others = _others_packer(
            tuple(name for name in _WITHOUT_METRICS if name in stats)
        )
        for part in (self._small, self._large, self._segments):
            part.seen = UNREAD

    def row(self, stats: Stats) -> bytes:
        """A reading as a row, of a device that does something; what it does not count is 0."""
        small, large, segments = self._small, self._large, self._segments
        try:
            reserved = stats["reserved_bytes"]["all"]
            current, peak = reserved["current"], reserved["peak"]
            key = (reserved["allocated"], reserved["freed"], current, peak)
            if key != segments.seen:
                # Blocks may have gone with their segments.
                small.seen = large.seen = UNREAD
            of_segments = segments.row(stats, key, current == peak)
            key, is_unchanged = _blocks(stats, "large_pool")
            if key == large.seen:
                small.seen = UNREAD
                of_small = small.pack(stats)
            else:
                small_key, is_small_unchanged = _blocks(stats, "small_pool")
                of_small = small.row(stats, small_key, is_small_unchanged)
            of_large = large.row(stats, key, is_unchanged)
            others = self._pack_others(stats)
            return b"".join((self._pack_all(stats), of_small, of_large, of_segments, others))
        except KeyError:
            return _row_with_zeros(stats)


def row_of(stats: Stats) -> bytes:
    return RowMaker().row(stats)


class _Part:
    """A part of a row, which stays as it is while its counters in ``seen`` do."""

    __slots__ = ("_unchanged", "pack", "seen")

    def __init__(self, pack: Callable[[Stats], bytes]) -> None:
        self.pack = pack
        self._unchanged: bytes | None = None
        self.seen = UNREAD

    def row(self, stats: Stats, key: Fingerprint, is_unchanged: bool) -> bytes:
        if key != self.seen:
            # At the next reading the peak, which is the last number, is the current value.
            self.seen = key if is_unchanged else (*key[:-1], key[-2])
            self._unchanged = None
            return self.pack(stats)
        if self._unchanged is None:
            self._unchanged = self.pack(stats)
        return self._unchanged


def _blocks(stats: Stats, pool: str) -> tuple[Fingerprint, bool]:
    """Counters that tell whether anything happened to the blocks of a pool; whether at rest."""
    allocation, active_bytes = stats["allocation"][pool], stats["active_bytes"][pool]
    current, peak = active_bytes["current"], active_bytes["peak"]
    freed = stats["active"][pool]["freed"]
    return (allocation["allocated"], allocation["freed"], freed, current, peak), current == peak


@functools.cache
def _packers() -> tuple[Callable[[Stats], bytes], ...]:
    return tuple(
        _compiled(
            [
                f"m{number} = stats[{group!r}]{'' if pool is None else f'[{pool!r}]'}"
                for number, (group, pool) in enumerate(part)
            ],
            [f"m{number}[{metric!r}]" for number in range(len(part)) for metric in METRICS],
        )
        for part in (_ALL, _SMALL, _LARGE, _SEGMENTS)
    )


@functools.cache
def _others_packer(present: tuple[str, ...]) -> Callable[[Stats], bytes]:
    """For a release of PyTorch that has these of the counters without metrics."""
    return _compiled(
        [], [f"stats[{name!r}]" if name in present else "0" for name in _WITHOUT_METRICS]
    )


def _compiled(steps: list[str], values: list[str]) -> Callable[[Stats], bytes]:
    """A function that packs fields one by one: a loop over names takes three times as long."""
    lines = ["def row(stats):", *steps, f"return pack({', '.join(values)})"]
    namespace: dict[str, Any] = {"pack": Struct(f"={len(values)}q").pack}
    exec("\n    ".join(lines), namespace)  # noqa: S102 - made of the constants above alone
    made: Callable[[Stats], bytes] = namespace["row"]
    return made


def _row_with_zeros(stats: Stats) -> bytes:
    row = [metrics_at(stats, path).get(metric, 0) for path in PATHS for metric in METRICS]
    row += [stats.get(name, 0) for name in _WITHOUT_METRICS]
    return np.array(row, _INT64).tobytes()


def metrics_at(stats: Stats, path: Path) -> Stats:
    """The metrics of a group, or of a pool in it; empty if the device does not count them."""
    group, pool = path
    metrics: Stats = stats.get(group, {})
    return metrics if pool is None else metrics.get(pool, {})


class Sample:
    """A reading; peaks are those since the last reset."""

    __slots__ = ("allocated", "approximations", "row")

    def __init__(
        self, row: bytes, allocated: int, approximations: Approximations = NO_APPROXIMATIONS
    ) -> None:
        self.row = row  # int64, in the order of ``ROW_FIELDS``
        self.allocated = allocated  # bytes now
        self.approximations = approximations  # of the device, so far

    def value(self, field: str) -> int:
        """One field, by its name in ``torch.cuda.memory_stats()``."""
        return int(values_of(self.row)[ROW_FIELDS.index(field)])

    @property
    def current(self) -> Row:
        """Current values, one for each group and pool."""
        return values_of(self.row)[CURRENT]

    def unchanged(self) -> Sample:
        """The next reading if nothing happens after a reset of the peaks."""
        return self.with_peak(self.current)

    def with_peak(self, peak: Row) -> Sample:
        """This reading with other peaks, one for each group and pool."""
        values = values_of(self.row).copy()
        values[PEAK] = peak
        return Sample(values.tobytes(), self.allocated, self.approximations)


ZERO = Sample(bytes(8 * len(ROW_FIELDS)), 0)
"""The reading of a device on which nothing was ever allocated."""


def replace_peaks(stats: Stats, peak: Row) -> Stats:
    """A copy of nested counters with other peaks, one for each group and pool."""
    copy: Stats = {
        group: {
            key: dict(metrics) if isinstance(metrics, dict) else metrics
            for key, metrics in value.items()
        }
        if isinstance(value, dict)
        else value
        for group, value in stats.items()
    }
    for path, value in zip(PATHS, peak.tolist(), strict=True):
        metrics = metrics_at(copy, path)
        if metrics:
            metrics["peak"] = value
    return copy


def nest_peaks(peak: Row) -> Stats:
    """Peaks alone, nested as counters are."""
    nested: Stats = {}
    for (group, pool), value in zip(PATHS, peak.tolist(), strict=True):
        level = nested.setdefault(group, {})
        (level if pool is None else level.setdefault(pool, {}))["peak"] = value
    return nested
