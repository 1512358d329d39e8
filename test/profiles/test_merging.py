"""Several profiles as one: every number goes to its function, its line and its device."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.sample_reports import CUDA0, INNER, MIB, OUTER, entry

from pytorch_memlab.errors import UsageError
from pytorch_memlab.history.holders import PeakHolders
from pytorch_memlab.history.peak import Peak
from pytorch_memlab.profiles.merging import merged
from pytorch_memlab.profiles.recorded import MeasuredDevice, RecordedCall, RecordedProfile, Run
from pytorch_memlab.records import Section

HELD = PeakHolders(Peak(0, MIB, 2 * MIB, 3, 4, ()), ((),))


def profile(rank, functions, entries, calls, **fields):
    run = Run("train.py", (), {}, "", 1.0, is_dry_run=False, rank=rank, world_size=2)
    device = MeasuredDevice(CUDA0, 24, (rank + 1) * MIB, MIB, 2 * MIB)
    return RecordedProfile(
        (run,),
        (device,),
        functions,
        entries,
        calls,
        ("active_bytes.all.peak",),
        sections=(Section("holders"),),
        peaks={"cuda:0": HELD},
        **fields,
    )


# ``inner`` was loaded twice in the second run.
FIRST = profile(
    0,
    (OUTER, INNER),
    (entry(0, 8, 1), entry(1, 5, 2)),
    (RecordedCall(1, 0, "sample.py", "outer", 10, 1, {"cuda:0": 7}),),
    failures={(0, 8): 5},
)
SECOND = profile(
    1,
    (INNER, OUTER, INNER),
    (entry(0, 5, 3), entry(1, 8, 4), entry(2, 5, 5)),
    (
        RecordedCall(0, 1, "sample.py", "outer", 10, 2, {"cuda:0": 9}),
        RecordedCall(2, None, "sample.py", "<module>", 1, 1),
    ),
    failures={(0, 5): 6, (2, 4): 7},
    shown=(2,),
)


def test_lines_calls_and_failures_keep_their_function_and_devices_get_the_rank():
    both = merged({"a.json": FIRST, "b.json": SECOND})
    one, other = (replace(CUDA0, name=f"rank{rank} cuda:0") for rank in (0, 1))
    assert both == RecordedProfile(
        (replace(FIRST.runs[0], label="rank0"), replace(SECOND.runs[0], label="rank1")),
        (
            MeasuredDevice(one, 24, MIB, MIB, 2 * MIB),
            MeasuredDevice(other, 24, 2 * MIB, MIB, 2 * MIB),
        ),
        (OUTER, INNER, INNER),
        (
            entry(0, 8, 1, device=one),
            entry(1, 5, 2, device=one),
            entry(1, 5, 3, device=other),
            entry(0, 8, 4, device=other),
            entry(2, 5, 5, device=other),
        ),
        (
            RecordedCall(1, 0, "sample.py", "outer", 10, 3, {"rank0 cuda:0": 7, "rank1 cuda:0": 9}),
            RecordedCall(2, None, "sample.py", "<module>", 1, 1),
        ),
        ("active_bytes.all.peak",),
        shown=(0, 1, 2),
        sections=(Section("rank0: holders"), Section("rank1: holders")),
        peaks={
            f"{label} cuda:0": PeakHolders(replace(HELD.peak, run=label), ((),))
            for label in ("rank0", "rank1")
        },
        failures={(0, 8): 5, (1, 5): 6, (2, 4): 7},
    )


def test_what_is_merged_once_more_keeps_its_labels():
    again = merged({"all.json": merged({"a.json": FIRST, "b.json": SECOND})})
    assert again.sections == (Section("rank0: holders"), Section("rank1: holders"))
    assert [run.label for run in again.runs] == ["rank0", "rank1"]


def test_a_rank_is_merged_once():
    both = merged({"a.json": FIRST, "b.json": SECOND})
    with pytest.raises(UsageError, match=r"^rank1 is twice in all\.json, b\.json: merge each run"):
        merged({"all.json": both, "b.json": SECOND})
