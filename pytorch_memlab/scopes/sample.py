"""One reading of a device's counters."""

from __future__ import annotations

from ..devices import NO_APPROXIMATIONS, Approximations, Stats
from .row import CURRENT, PATHS, PEAK, ROW_FIELDS, Row, metrics_at, values_of


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
        group: {key: dict(one) if isinstance(one, dict) else one for key, one in value.items()}
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
