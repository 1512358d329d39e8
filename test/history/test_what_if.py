"""Histories replayed: as they were recorded, under other settings, and on smaller GPUs."""

from __future__ import annotations

import random

import pytest
import torch
from recorded_programs.histories import RECORDINGS, history_of_recording
from recorded_programs.streams import load

from pytorch_memlab.errors import AllocatorSettingsError
from pytorch_memlab.history.model import AllocationHistory, DeviceHistory, Event, EventLog, Frame
from pytorch_memlab.history.peak import first_state
from pytorch_memlab.history.replay import check_replay, release_runs, replay, what_if
from pytorch_memlab.history.snapshot import history_of
from pytorch_memlab.simulation import replay as replay_trace, simulate
from pytorch_memlab.simulation.allocator.settings import AllocatorSettings

MIB = 2**20
BASE = 0x7000_0000_0000


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_recording_under_its_own_settings_gives_the_recorded_figures(name):
    trace = load(name)
    result = replay(history_of_recording(trace), order_by_address=True)
    kinds = [event[0] for event in trace["events"]]
    stats = replay_trace(trace).stats
    assert result.peak_active == stats["active_bytes"]["all"]["peak"]
    assert result.peak_reserved == stats["reserved_bytes"]["all"]["peak"]
    calls = result.calls
    assert calls.mallocs == kinds.count("segment_alloc")
    assert calls.frees == kinds.count("segment_free")
    assert calls.maps == kinds.count("segment_map")
    assert (result.retries, result.failures, result.events) == (0, (), len(kinds))


def program_history(*steps):
    """The history of requests and frees: a name and MiB for a request, a name for a free.

    The addresses are far apart, as if each request had its own segment.
    """
    events, addresses = [], {}
    stacks = [(), *((Frame("train.py", line, "step"),) for line in range(1, len(steps) + 1))]
    for line, step in enumerate(steps, 1):
        if isinstance(step, tuple):
            name, size = step
            address, size = BASE + line * 2**30, int(size * MIB)
            segment = -(-size // (2 * MIB)) * 2 * MIB
            addresses[name] = address, size
            events.append(Event("segment_alloc", address, segment, 0, 0, line))
            events.append(Event("alloc", address, size, 0, 0, line))
        else:
            address, size = addresses.pop(step)
            events.append(Event("free_requested", address, size, 0, 0, line))
            events.append(Event("free_completed", address, size, 0, 0, line))
    return AllocationHistory([DeviceHistory(0, EventLog(events), (), ())], stacks)


# Three tensors fill a segment of 20 MiB; the middle one stays. Two of 9 MiB around it are free.
HOLES = program_history(
    *(("x", 9), ("k", 2), ("y", 9), ("x2", 9), ("k2", 2), ("y2", 9)),
    *("x", "y", "x2", "y2", ("big", 28)),
)


def test_expandable_segments_fill_what_is_split():
    # 40 MiB of which 36 are free in pieces of 9 MiB, and a segment of 28 MiB.
    plain = replay(HOLES)
    assert (plain.peak_active, plain.peak_reserved) == (40 * MIB, 68 * MIB)
    assert (plain.calls.mallocs, plain.calls.maps) == (3, 0)
    assert plain.unused_at_peak == (68 - 32) * MIB
    # The last 9 MiB are free and grow by 19, which is one page of 20 MiB.
    expandable = replay(HOLES, settings="expandable_segments:True")
    assert (expandable.peak_active, expandable.peak_reserved) == (40 * MIB, 60 * MIB)
    assert (expandable.calls.mallocs, expandable.calls.maps) == (0, 3)
    assert expandable.unused_at_peak == (60 - 32) * MIB


def test_a_gpu_that_is_too_small_for_the_pieces_is_large_enough_for_pages():
    failure = replay(HOLES, capacity=64 * MIB).out_of_memory
    assert (failure.size, failure.active, failure.reserved, failure.free) == (
        28 * MIB, 4 * MIB, 40 * MIB, 24 * MIB
    )  # fmt: skip
    event = HOLES.devices[0].events[failure.index]
    assert (event.action, event.size) == ("alloc", 28 * MIB)
    assert HOLES.stacks[event.stack] == (Frame("train.py", 11, "step"),)
    assert "Tried to allocate 28.00 MiB. GPU 0 has a total capacity of 64.00 MiB" in failure.message
    assert replay(HOLES, settings="expandable_segments:True", capacity=64 * MIB).failures == ()


def test_what_others_take_is_not_the_allocators():
    result = replay(HOLES, settings="expandable_segments:True", capacity=64 * MIB, taken=5 * MIB)
    failure = result.out_of_memory
    assert (failure.size, failure.free, result.taken) == (28 * MIB, 19 * MIB, 5 * MIB)
    assert result.events == failure.index
    assert result.retries == 1


def test_a_large_block_that_is_not_split_serves_the_next_large_request():
    history = program_history(("a", 100), "a", ("b", 12), ("c", 100))
    # 12 of 100 MiB are in use, so that the other 100 MiB need a segment.
    assert replay(history).peak_reserved == 200 * MIB
    assert replay(history, settings="max_split_size_mb:64").peak_reserved == 112 * MIB


def test_settings_that_are_not_named_stay_as_recorded():
    history = program_history(("a", 1.5))
    assert replay(history).peak_reserved == 20 * MIB
    recorded = AllocationHistory(
        history.devices, history.stacks, {"PYTORCH_CUDA_ALLOC_CONF": "large_segment_size_mb:32"}
    )
    result = replay(recorded, settings="max_split_size_mb:64")
    assert result.peak_reserved == 32 * MIB
    assert result.settings.max_split_size == 64 * MIB


def test_a_setting_that_does_not_exist_is_refused():
    with pytest.raises(AllocatorSettingsError, match="did you mean max_split_size_mb"):
        replay(HOLES, settings="max_split_size:64")


@pytest.mark.parametrize("gone", [0, 1])
def test_a_history_that_begins_within_an_expandable_segment_goes_on_in_it(gone, monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    with simulate("24GiB"):
        kept = [torch.empty(30 * MIB, dtype=torch.uint8, device="cuda") for _ in range(3)]
        kept += [torch.empty(MIB, dtype=torch.uint8, device="cuda")]
        del kept[gone]
        torch.cuda.empty_cache()
        torch.cuda.memory._record_memory_history()
        torch.cuda.reset_peak_memory_stats()
        # 30 MiB of the addresses are free, and one page of 20 MiB in them has no memory.
        kept += [torch.empty(45 * MIB, dtype=torch.uint8, device="cuda")]
        kept += [torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")]
        history = history_of(torch.cuda.memory._snapshot())
        stats = torch.cuda.memory_stats()
        torch.cuda.memory._record_memory_history(enabled=None)
        del kept
    result = replay(history)
    assert result.peak_active == stats["active_bytes.all.peak"] == 136 * MIB
    assert result.peak_reserved == stats["reserved_bytes.all.peak"] == 142 * MIB
    assert check_replay(history).matches
    events = history.devices[0].events
    assert result.calls.maps == [event.action for event in events].count("segment_map") == 2


def random_program(seed):
    """Allocates and frees on two streams; some blocks are used on both."""
    choose = random.Random(seed)
    side = torch.cuda.Stream()
    kept = []
    for _ in range(150):
        if kept and choose.random() < 0.45:
            tensor = kept.pop(choose.randrange(len(kept)))
            if choose.random() < 0.3:
                tensor.record_stream(side)
            del tensor
        size = choose.choice([choose.randint(1, MIB), choose.randint(1, 30 * MIB)])
        with torch.cuda.stream(side if choose.random() < 0.2 else None):
            kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))


def recorded(gpu, seed):
    """The history of a random program on a simulated GPU, and the error that ended it."""
    error = None
    with simulate(gpu):
        torch.cuda.memory._record_memory_history()
        try:
            random_program(seed)
        except torch.OutOfMemoryError as caught:
            error = str(caught)
        history = history_of(torch.cuda.memory._snapshot())
        torch.cuda.memory._record_memory_history(enabled=None)
    return history, error


def requests(history, end):
    """The requests of a history up to an event."""
    return [event.size for event in history.devices[0].events[:end] if event.action == "alloc"]


@pytest.mark.parametrize("settings", ["", "expandable_segments:True", "max_split_size_mb:20"])
@pytest.mark.parametrize("seed", range(4))
def test_a_smaller_gpu_fails_as_the_program_does_on_it(settings, seed, monkeypatch):
    whole, error = recorded("24GiB", seed)
    assert error is None
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", settings)
    actual, error = recorded("500MiB", seed)
    result = replay(whole, settings=settings, capacity=500 * MIB)
    failure = result.out_of_memory
    assert failure is not None
    assert failure.message == error
    [event] = [n for n, one in enumerate(actual.devices[0].events) if one.action == "oom"]
    assert requests(whole, failure.index) == requests(actual, event)
    found = (whole, failure.index), (actual, event)
    frames = [one.stacks[one.devices[0].events[index].stack][:2] for one, index in found]
    assert frames[0] == frames[1]


def with_empty_cache(context="all"):
    """A program that empties the cache, and the peak of its reserved bytes."""
    with simulate("100MiB"):
        torch.cuda.memory._record_memory_history(context=context)
        torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
        torch.cuda.empty_cache()
        kept = torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")
        torch.empty(50 * MIB, dtype=torch.uint8, device="cuda")
        small = torch.empty(60 * MIB, dtype=torch.uint8, device="cuda")
        history = history_of(torch.cuda.memory._snapshot())
        stats = torch.cuda.memory_stats()
        torch.cuda.memory._record_memory_history(enabled=None)
        del kept, small
    return history, stats


def test_a_cache_that_the_program_emptied_is_emptied_again():
    history, stats = with_empty_cache()
    assert (stats["num_alloc_retries"], stats["reserved_bytes.all.peak"]) == (1, 100 * MIB)
    recorded = replay(history, capacity=100 * MIB)
    assert (recorded.peak_reserved, recorded.retries) == (100 * MIB, 1)
    assert (recorded.calls.mallocs, recorded.calls.frees) == (4, 2)
    # Only the 30 MiB went back at the program's word; the 50 MiB went to make room for 60.
    roomy = replay(history)
    assert (roomy.peak_reserved, roomy.retries) == (150 * MIB, 0)
    assert (roomy.calls.mallocs, roomy.calls.frees) == (4, 1)


def test_a_request_without_room_waits_for_what_streams_still_use():
    events = [
        Event("alloc", BASE, 30 * MIB, 0, 0, 0),
        Event("free_requested", BASE, 30 * MIB, 0, 0, 0),
        Event("alloc", 2 * BASE, 30 * MIB, 0, 0, 0),
        Event("free_completed", BASE, 30 * MIB, 0, 0, 0),
    ]
    history = AllocationHistory([DeviceHistory(0, EventLog(events), (), ())], [()])
    assert replay(history).peak_active == 60 * MIB
    small = replay(history, capacity=40 * MIB)
    assert (small.failures, small.peak_active, small.retries) == ((), 30 * MIB, 1)


def test_an_event_tells_how_much_the_gpu_had():
    history, _ = recorded("500MiB", 1)
    for found, capacity in ((history, 500 * MIB), (HOLES, None)):
        [variant] = what_if(found, settings="max_split_size_mb:200").variants
        assert variant.result.capacity == capacity
    result = replay(history, capacity=500 * MIB)
    assert result.out_of_memory.was_recorded
    larger = replay(history, capacity=600 * MIB)
    assert larger.failures == ()
    assert larger.events == len(history.devices[0].events)


@pytest.mark.parametrize("context", ["alloc", "all"])
def test_stacks_tell_room_that_was_made_from_a_cache_that_was_emptied(context):
    history, _ = with_empty_cache(context)
    one = history.devices[0]
    segments = first_state(one, AllocatorSettings()).segments
    runs = list(release_runs(one.events, segments, AllocatorSettings()))
    assert [run.is_of_request for run in runs] == [False, True]
    lines = [history.stacks[one.events[run.first].stack][0].line for run in runs]
    request = next(event for event in one.events if event.size == 60 * MIB)
    assert history.stacks[request.stack][0].line == lines[1] != lines[0]


def test_a_request_that_fails_has_its_line_without_stacks_of_frees():
    with simulate("64MiB"):
        torch.cuda.memory._record_memory_history(context="alloc")
        with pytest.raises(torch.OutOfMemoryError):
            keep(90)
        history = history_of(torch.cuda.memory._snapshot())
        torch.cuda.memory._record_memory_history(enabled=None)
    [event] = history.devices[0].events
    assert (event.action, history.stacks[event.stack][0].name) == ("oom", "keep")


def keep(size):
    return torch.empty(size * MIB, dtype=torch.uint8, device="cuda")
