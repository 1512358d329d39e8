"""The allocator does what real GPUs were recorded to do, allocation by allocation."""

import re

import pytest
from recorded_programs.streams import FOLDER, load

from pytorch_memlab.simulation import replay

NAMES = sorted(path.name.removesuffix(".json.gz") for path in FOLDER.glob("*.json.gz"))
SEGMENTS = {"segment_alloc", "segment_free", "segment_map", "segment_unmap"}


def test_the_recordings_are_here():
    assert len(NAMES) >= 13


def test_the_readme_of_the_recordings_gives_their_events_and_peaks():
    rows = re.findall(
        r"^\| `([\w.]+)` \|.*\| ([\d,]+) \| ([\d.]+) MiB \|$",
        (FOLDER / "README.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert [name for name, _, _ in rows] == NAMES
    for name, events, peak in rows:
        trace = load(name)
        assert events == f"{len(trace['events']):,}"
        assert peak == f"{replay(trace).stats['active_bytes']['all']['peak'] / 2**20:.2f}"


@pytest.mark.parametrize("name", NAMES)
def test_every_allocation_lands_where_a_real_gpu_put_it(name):
    trace = load(name)
    result = replay(trace)
    assert result.mismatches == []
    assert result.final_matches
    kinds = [kind for kind, *_ in trace["events"]]
    assert result.allocations == kinds.count("alloc")
    assert result.segments_checked == sum(kind in SEGMENTS for kind in kinds)
