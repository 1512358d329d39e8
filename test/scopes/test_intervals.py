"""Intervals are merged as they come: a line that runs a million times has a few of them."""

from __future__ import annotations

import tracemalloc

import numpy as np

from pytorch_memlab.scopes import Sample
from pytorch_memlab.scopes.intervals import HighestInterval
from pytorch_memlab.scopes.row import ROW_FIELDS

PEAK = ROW_FIELDS.index("active_bytes.all.peak")


def reading(peak: int) -> Sample:
    row = np.zeros(len(ROW_FIELDS), dtype=np.int64)
    row[PEAK] = peak
    return Sample(row.tobytes(), 0)


def test_many_intervals_take_the_memory_of_a_few_and_have_the_highest_peak() -> None:
    intervals = HighestInterval()
    tracemalloc.start()
    try:
        for number in range(1000):
            intervals.add(reading(0), reading(500 - abs(number - 500)))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert held < 100 * len(reading(0).row)
    assert intervals.stats()["active_bytes.all.peak"] == 500


def test_without_any_interval_all_is_zero_but_the_size_that_nothing_limits() -> None:
    stats = HighestInterval().stats()
    assert {name: value for name, value in stats.items() if value} == {"max_split_size": -1}
    assert "temporary" in stats
