"""The timeline of a history: bands add up to active bytes at every point, and no peak is lost."""

from __future__ import annotations

from itertools import groupby

import pytest
import torch
from recorded_programs.histories import RECORDINGS, history_of_recording
from recorded_programs.streams import load

from pytorch_memlab import LineProfiler
from pytorch_memlab.errors import SnapshotError
from pytorch_memlab.history.model import (
    AllocationHistory,
    Category,
    DeviceHistory,
    Event,
    EventLog,
    Frame,
    Segment,
    UsedBlock,
)
from pytorch_memlab.history.peak import find_peak, first_state
from pytorch_memlab.history.recorder import Recording
from pytorch_memlab.history.snapshot import history_of
from pytorch_memlab.history.timeline import Band, timeline_of
from pytorch_memlab.simulation import simulate
from pytorch_memlab.simulation.allocator.settings import AllocatorSettings

MIB = 2**20


def adds_up(timeline):
    columns = zip(*(band.sizes for band in timeline.bands), strict=True)
    return [sum(column) for column in columns] == list(timeline.active)


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_bands_of_a_recording_add_up_and_its_peak_is_the_one_found(name):
    history = history_of_recording(load(name))
    peak = find_peak(history)
    timeline = timeline_of(history)
    assert adds_up(timeline)
    assert timeline.active[timeline.peak] == max(timeline.active) == peak.active
    assert timeline.reserved[timeline.peak] == peak.reserved
    assert timeline.points[timeline.peak] == peak.event
    assert len(timeline.points) <= 1802


MAIN = Frame("/home/me/train.py", 3, "main")
STEP = Frame("/home/me/train.py", 9, "step")
STACKS = [(), (MAIN,), (STEP, MAIN)]
INITIAL = [Segment(0, 20 * MIB, False, (UsedBlock(0, 2 * MIB, 2 * MIB, None),))]


def event(action, address, size, stack=0, category=Category.UNKNOWN, time=0):
    return Event(action, address * MIB, size * MIB, 0, time, stack, 0, category)


def history(*events, stacks=STACKS, initial=INITIAL):
    return AllocationHistory([DeviceHistory(0, EventLog(events), (), initial)], stacks)


def test_every_moment_at_which_a_counter_moves_is_a_point():
    timeline = timeline_of(
        history(
            event("alloc", 2, 4, 1, time=10),
            event("free_requested", 2, 4, 2, time=500_010),
            event("segment_alloc", 64, 20, 2, time=600_010),
            event("alloc", 64, 20, 2, time=700_010),
            event("free_completed", 2, 4, 2, time=1_000_010),
            event("oom", 5, 99, 2, time=2_000_010),
        )
    )
    assert timeline.points == (-1, 0, 2, 3, 4, 5)
    assert timeline.seconds == (0, 0, 0.6, 0.7, 1, 2)
    assert timeline.active == tuple(n * MIB for n in (2, 6, 6, 26, 22, 22))
    assert timeline.reserved == tuple(n * MIB for n in (20, 20, 40, 40, 40, 40))
    assert timeline.frames == (None, MAIN, STEP, STEP, STEP, STEP)
    assert timeline.peak == 3
    assert timeline.failures == (5,)
    assert (timeline.by, timeline.events, timeline.capacity) == ("line", 6, None)
    assert {band.name: [size // MIB for size in band.sizes] for band in timeline.bands} == {
        "train.py:9 step": [0, 0, 0, 20, 20, 20],
        "train.py:3 main": [0, 4, 4, 4, 0, 0],
        "allocated before the recording": [2, 2, 2, 2, 2, 2],
    }


def test_bands_are_categories_in_their_order_where_any_is_known():
    found = timeline_of(
        history(
            event("alloc", 2, 1, 1, Category.GRADIENTS),
            event("alloc", 3, 3, 1, Category.PARAMETERS),
            event("free_completed", 2, 1, 1),
        )
    )
    assert found.by == "category"
    assert found.bands == (
        Band("parameters", (0, 0, 3 * MIB, 3 * MIB)),
        Band("gradients", (0, MIB, MIB, 0)),
        Band("unknown", (2 * MIB,) * 4),
    )
    by_line = timeline_of(
        history(event("alloc", 2, 1, 1, Category.GRADIENTS), initial=[]), by="line"
    )
    assert by_line.bands == (Band("train.py:3 main", (0, MIB)),)


def test_the_lines_that_hold_most_at_the_peak_have_a_band_and_all_others_share_one():
    frames = [Frame("train.py", line, "main") for line in range(1, 13)]
    stacks = [(), *((frame,) for frame in frames)]
    events = [event("alloc", 200 * n, n, n) for n in range(1, 13)]
    events.append(event("free_completed", 2400, 12, 12))
    found = timeline_of(history(*events, stacks=stacks, initial=[]))
    assert [band.name for band in found.bands] == [
        *(f"train.py:{line} main" for line in range(12, 4, -1)),
        "other lines",
    ]
    assert found.bands[0].sizes[-2:] == (12 * MIB, 0)
    assert found.bands[-1].sizes[-1] == (1 + 2 + 3 + 4) * MIB
    assert adds_up(found)


def test_no_peak_of_a_long_history_is_lost():
    """20,000 allocations and frees, one of them 1 MiB higher than all others, and a segment."""
    events = []
    for n in range(20_000):
        size = 9 if n == 12_345 else 8
        if n == 5_000:
            events += [event("segment_alloc", 64, 20), event("segment_free", 64, 20)]
        events += [
            event("alloc", 2, size, 1 + n % 2),
            event("free_requested", 2, size),
            event("free_completed", 2, size),
        ]
    long = history(*events)
    found = timeline_of(long)
    assert 1000 < len(found.points) <= 1802
    assert adds_up(found)
    peak = find_peak(long)
    assert (found.points[found.peak], found.active[found.peak]) == (peak.event, 11 * MIB)
    assert sorted(set(found.active)) == [2 * MIB, 10 * MIB, 11 * MIB]
    assert max(found.reserved) == 40 * MIB
    # Every 100th of the time shows the highest and the lowest value of it.
    for part in range(100):
        begin, end = part * 600, (part + 1) * 600
        here = {
            a for point, a in zip(found.points, found.active, strict=True) if begin <= point < end
        }
        assert {2 * MIB, 10 * MIB} <= here


@pytest.mark.parametrize("device", [1, -1])
def test_a_history_may_have_one_device_alone(device):
    events = [event("alloc", 2, 4, 1)]
    alone = AllocationHistory([DeviceHistory(device, EventLog(events), (), INITIAL)], STACKS)
    found = timeline_of(alone, device)
    assert (found.device, found.active) == (device, (2 * MIB, 6 * MIB))
    assert find_peak(alone, device).active == 6 * MIB
    with pytest.raises(LookupError, match="the history has no device 0"):
        timeline_of(alone, 0)


def test_a_history_without_events_is_one_point():
    found = timeline_of(history())
    assert (found.points, found.active, found.peak) == ((-1,), (2 * MIB,), 0)


def recorded(program):
    with simulate("24GiB"):
        torch.cuda.memory._record_memory_history()
        program()
        snapshot = torch.cuda.memory._snapshot()
        torch.cuda.memory._record_memory_history(enabled=None)
    return history_of(snapshot)


def test_each_step_of_an_optimizer_that_allocates_is_marked_at_its_end():
    model = torch.nn.Linear(64, 64)
    ends = []

    def program():
        model.cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            model(torch.ones(4, 64, device="cuda")).sum().backward()
            optimizer.step()
            ends.append(len(torch.cuda.memory._snapshot()["device_traces"][0]) - 1)
            optimizer.zero_grad()

    found = timeline_of(recorded(program))
    assert (list(found.steps), found.has_all_steps) == (ends, False)


def test_steps_that_a_recording_followed_are_marked_though_they_take_no_memory():
    def program():
        model = torch.nn.Linear(64, 64, device="cuda")
        optimizer = torch.optim.SGD(model.parameters(), foreach=False)
        for _ in range(3):
            model(torch.ones(4, 64, device="cuda")).sum().backward()
            optimizer.step()
            ends.append(len(kept.history().devices[0].events) - 1)
            optimizer.zero_grad()

    ends = []
    kept = Recording(history=True)
    with simulate("24GiB"):
        kept.begin()
        program()
        kept.end()
    found = timeline_of(kept.history())
    assert (list(found.steps), found.has_all_steps) == (ends, True)


def test_a_function_called_wrapper_is_no_step():
    frame = Frame("/home/me/train.py", 3, "wrapper")
    found = timeline_of(history(event("alloc", 2, 4, 1), stacks=[(), (frame,)]))
    assert found.steps == ()


def test_more_bytes_than_64_bits_can_count_are_refused():
    huge = [Event("alloc", n << 62, 1 << 62, 0, 0, 1) for n in range(3)]
    with pytest.raises(SnapshotError, match=r"^this is no history of a GPU: more than 8 EiB"):
        timeline_of(history(*huge))


def test_phases_follow_from_stacks_and_frees_belong_to_the_event_before():
    engine = Frame("torch/autograd/graph.py", 1, "_engine_run_backward")
    step = Frame("/x/torch/optim/optimizer.py", 1, "wrapper")
    program = Frame("train.py", 3, "main")
    stacks = [(), (program,), (engine, program), (step, program)]
    made = [("alloc", 1), ("alloc", 2), ("free_completed", 0), ("alloc", 3), ("free_completed", 0)]
    addresses = [0, 4096, 4096, 8192, 0]
    events = [
        Event(action, address, 512, 0, time, stack)
        for time, ((action, stack), address) in enumerate(zip(made, addresses, strict=True))
    ]
    device = DeviceHistory(0, EventLog(events), (), [Segment(0, 1 << 21, False, ())])
    found = timeline_of(AllocationHistory([device], stacks, {}, (3,)))
    assert found.points == (-1, 0, 1, 2, 3, 4)
    assert found.steps == (3,)
    assert found.phases == ("", "", "backward", "backward", "optimizer step", "")
    without = timeline_of(AllocationHistory([device], [(), (program,)] * 2, {}, (3,)))
    assert without.phases == ()


def train():
    model = torch.nn.Linear(64, 64, device="cuda")
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        model(torch.ones(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.knows_simulation("PyTorch's history tells neither who freed a block nor its module")
def test_phases_of_a_training_loop():
    with simulate("1GiB"), LineProfiler(train, history=True) as profiler:
        train()
    phases = [phase for phase, _ in groupby(timeline_of(profiler.history()).phases)]
    assert phases == ["", "backward", "optimizer step", "", "backward", "optimizer step", ""]


def test_the_first_segments_are_in_the_order_of_their_addresses():
    high = Segment(64 * MIB, 20 * MIB, False, ())
    device = DeviceHistory(0, EventLog([event("alloc", 66, 1)]), (), [high, *INITIAL])
    assert first_state(device, AllocatorSettings()).segments == [*INITIAL, high]
