"""A recording beside a simulation: what is equal, where the rest is, and by which line."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytorch_memlab.history.model import (
    AllocationHistory,
    DeviceHistory,
    Event,
    EventLog,
    Frame,
    Segment,
)
from pytorch_memlab.history.recording_comparison import (
    FileLine,
    LineBytes,
    Peaks,
    Request,
    beginning_in,
    compare,
    equal_in_order,
)

SEGMENT = Segment(2**30, 2 * 2**20, False, ())
STACKS = ((), *((Frame("/home/me/train.py", line, "train"),) for line in range(1, 5)))


def history(*blocks: tuple[int, int], frees: bool = True) -> AllocationHistory:
    """Blocks one beside the other, each of a line and a size, freed at the end."""
    events, address = [Event("segment_alloc", SEGMENT.address, SEGMENT.size, 0, 0, 0)], 2**30
    for line, size in blocks:
        events.append(Event("alloc", address, size, 0, 0, line))
        address += size
    address = 2**30
    for _, size in blocks if frees else ():
        events.append(Event("free_completed", address, size, 0, 0, 0))
        address += size
    return AllocationHistory([DeviceHistory(0, EventLog(events), [SEGMENT])], STACKS)


def requests(*sizes: int) -> list[Request]:
    return [Request("alloc", size) for size in sizes]


def test_equal_streams():
    found = compare(history((1, 512), (2, 1024)), history((1, 512), (2, 1024)), is_whole=True)
    assert found.is_equal
    assert (found.equal, found.total, found.before, found.after) == (4, 4, 0, 0)
    assert found.recorded == found.simulated == Peaks(1536, 2 * 2**20)
    assert found.lines == ()


def test_a_request_that_the_simulation_lacks_is_named_with_its_line():
    found = compare(
        history((1, 512), (3, 2048), (2, 1024)), history((1, 512), (2, 1024)), is_whole=True
    )
    assert (found.equal, found.total) == (4, 6)
    assert [
        (one.line, one.index, [event.size for event in one.recorded], one.simulated, one.nbytes)
        for one in found.differences
    ] == [
        (FileLine("train.py", 3), 1, [2048], (), -2048),
        (FileLine("train.py", 3), 4, [2048], (), 0),
    ]
    assert found.lines == (LineBytes(FileLine("train.py", 3), 2048, 0),)
    assert (found.recorded.active, found.simulated.active) == (3584, 1536)
    assert not found.is_equal


def test_a_request_that_only_the_simulation_has():
    found = compare(history((1, 512)), history((1, 512), (4, 4096)), is_whole=True)
    assert [(one.line, one.recorded, one.nbytes) for one in found.differences] == [
        (FileLine("train.py", 4), (), 4096),
        (FileLine("train.py", 4), (), 0),
    ]


def test_streams_that_share_nothing_are_one_difference():
    found = compare(
        history((1, 512), frees=False), history((2, 1024), (3, 2048), frees=False), is_whole=True
    )
    [whole] = found.differences
    assert [event.size for event in whole.recorded] == [512]
    assert [event.size for event in whole.simulated] == [1024, 2048]
    assert (found.equal, found.total) == (0, 2)


def test_a_recording_from_the_middle_of_a_program():
    program = [(1, 512 * size) for size in range(1, 9)]
    recorded = history(*program[3:6], frees=False)
    found = compare(recorded, history(*program))
    assert found.is_equal is False  # what was in use before is not in this recording
    assert (found.equal, found.total, found.differences) == (3, 3, ())
    assert (found.before, found.after) == (3, 10)
    before = sum(size for _, size in program[:3])
    assert found.simulated.active - found.recorded.active == before


def test_a_whole_recording_that_ends_early_differs():
    recorded = history((1, 512), frees=False)
    found = compare(recorded, history((1, 512), (2, 1024)), is_whole=True)
    assert [len(one.simulated) for one in found.differences] == [3]


def test_a_device_that_was_not_used():
    with pytest.raises(LookupError, match="no device 1"):
        compare(history((1, 512)), history((1, 512)), 1)


@pytest.mark.parametrize(
    ("recording", "begin"),
    [
        (requests(5, 6, 7), 4),
        (requests(1, 2), 0),
        (requests(9, 6, 7), 4),  # the first one differs, the others are alike
        ([], 0),
    ],
)
def test_where_a_recording_begins(recording: Sequence[Request], begin: int):
    assert beginning_in(requests(1, 2, 3, 4, 5, 6, 7, 8), recording) == begin


def test_a_repeated_beginning_is_told_by_what_follows():
    step = requests(*range(40))
    program = [*step, *step, *requests(99), *step]
    assert beginning_in(program, [*step, *requests(99)]) == 40


@pytest.mark.parametrize("shift", [1, 399, 400, 401, 900])
def test_streams_meet_again_after_a_long_difference(shift: int):
    common = requests(*range(1000))
    extra = requests(*(10_000 + size for size in range(shift)))
    one, other = [*common[:500], *extra, *common[500:]], common
    if shift < 400:
        assert equal_in_order(one, other) == 1000
    assert 500 <= equal_in_order(one, other) <= 1000
