"""Rows made in parts have the values of a whole reading, whatever the parts did in between."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
import torch

from pytorch_memlab import simulate
from pytorch_memlab.devices import get_device
from pytorch_memlab.memory_fields import FIELDS
from pytorch_memlab.scopes import PeakScope, Sample, peak_tracker
from pytorch_memlab.scopes.row import FIELD_ORDER, PATHS, ROW_FIELDS, RowMaker, row_of, values_of

KIB, MIB = 2**10, 2**20
SIZES = (1, 512, 200 * KIB, MIB, 3 * MIB, 30 * MIB)


def value(stats: dict[str, object], field: str) -> int:
    found: object = stats
    for key in field.split("."):
        found = found.get(key, 0) if isinstance(found, dict) else 0
    assert isinstance(found, int)
    return found


def do_something(chance: random.Random, held: list[torch.Tensor]) -> None:
    match chance.choice(["take", "take", "drop", "both", "nothing", "cache", "oom", "reset"]):
        case "take":
            held.append(torch.empty(chance.choice(SIZES), dtype=torch.uint8, device="cuda"))
        case "drop" if held:
            held.pop(chance.randrange(len(held)))
        case "both":
            torch.empty(chance.choice(SIZES), dtype=torch.uint8, device="cuda")
        case "cache":
            torch.cuda.empty_cache()
        case "oom":
            with pytest.raises(torch.OutOfMemoryError):
                torch.empty(2**34, dtype=torch.uint8, device="cuda")
        case "reset":
            torch.cuda.reset_accumulated_memory_stats()


@pytest.mark.parametrize("seed", range(4))
def test_every_reading_has_all_counters_of_that_moment(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:20")
    chance, held = random.Random(seed), list[torch.Tensor]()
    with simulate("1GiB"):
        device, rows = get_device(0), RowMaker()
        held.append(torch.empty(1, device="cuda"))
        rows.begin(device.stats())
        for _ in range(120):
            do_something(chance, held)
            stats = device.stats()
            found = values_of(rows.row(stats))
            assert dict(zip(ROW_FIELDS, found.tolist(), strict=True)) == {
                field: value(stats, field) for field in FIELDS
            }
            device.reset_peaks()
        held.clear()


def test_a_row_has_each_field_once_and_tells_the_public_order() -> None:
    assert sorted(ROW_FIELDS) == sorted(FIELDS)
    assert [ROW_FIELDS[place] for place in FIELD_ORDER] == list(FIELDS)
    assert len(set(PATHS)) == 29


def test_a_device_that_lacks_counters_has_zeros() -> None:
    stats = {"allocated_bytes": {"all": {"current": 5, "peak": 7}}, "num_ooms": 2}
    sample = Sample(row_of(stats), 5)
    assert sample.value("allocated_bytes.all.peak") == 7
    assert sample.value("num_ooms") == 2
    assert int(np.sum(values_of(sample.row))) == 14


def test_peaks_of_both_pools_are_those_of_each_stretch() -> None:
    small, large = "active_bytes.small_pool.peak", "active_bytes.large_pool.peak"
    with simulate("24GiB"):
        kept = torch.empty(4 * KIB, dtype=torch.uint8, device="cuda")
        tracker = peak_tracker(get_device(0))
        with PeakScope():
            readings = [tracker.sample()]
            for size in (KIB, KIB, 2 * MIB, 4 * MIB, KIB, 2 * MIB, KIB, KIB):
                torch.empty(size, dtype=torch.uint8, device="cuda")
                readings.append(tracker.sample())
        del kept
    peaks = [(one.value(small) // KIB, one.value(large) // MIB) for one in readings[1:]]
    assert peaks == [(5, 0), (5, 0), (4, 2), (4, 4), (5, 0), (4, 2), (5, 0), (5, 0)]
    assert all(one is not other for one, other in pairwise(readings))
