"""Histories from which segment events were skipped, or whose sizes are impossible."""

from __future__ import annotations

import pytest

from pytorch_memlab.errors import SnapshotError
from pytorch_memlab.history.model import AllocationHistory, DeviceHistory, Event, EventLog, Segment
from pytorch_memlab.history.peak import find_peak, first_state
from pytorch_memlab.history.replay import replay
from pytorch_memlab.history.timeline import timeline_of
from pytorch_memlab.simulation.allocator.settings import AllocatorSettings

MIB = 2**20


def history(*events):
    events = [
        Event(action, start * MIB, int(size * MIB), 0, 0, 0) for action, start, size in events
    ]
    return AllocationHistory([DeviceHistory(0, EventLog(events), ())], [()])


def test_a_segment_that_is_made_twice_and_goes_back_once_is_gone():
    found = history(
        ("segment_alloc", 20, 20),
        ("segment_alloc", 20, 20),
        ("segment_free", 20, 20),
        ("alloc", 20, 19.5),
    )
    assert [block.size for block in find_peak(found).blocks] == [19.5 * MIB]


def test_a_block_from_before_has_the_rest_that_is_too_small_to_be_split_off():
    found = history(
        ("free_completed", 20, 10),
        ("free_completed", 30, 9.5),
        ("segment_free", 20, 20),
        ("free_completed", 50, 9),
        ("segment_free", 40, 20),
    )
    peak = find_peak(found)
    assert [
        (block.address // MIB, block.size / MIB, block.requested / MIB) for block in peak.blocks
    ] == [
        (20, 10, 10),
        (30, 10, 9.5),
        (50, 10, 9),
    ]
    assert (peak.active, peak.reserved) == (30 * MIB, 40 * MIB)
    assert replay(found).peak_reserved == peak.reserved


def test_pages_that_go_back_twice_are_one_range_before():
    found = history(("segment_unmap", 30, 20), ("segment_unmap", 20, 40))
    [segment] = first_state(found.devices[0], AllocatorSettings()).segments
    assert (segment.address, segment.size) == (20 * MIB, 40 * MIB)


def test_more_bytes_than_64_bits_can_count_have_a_peak_and_no_timeline():
    segments = [Segment(0, 2**63, False, ())]
    found = AllocationHistory([DeviceHistory(0, EventLog(), segments)], [()])
    assert find_peak(found).reserved == 2**63
    with pytest.raises(SnapshotError, match=r"^this is no history of a GPU: more than 8 EiB"):
        timeline_of(found)
