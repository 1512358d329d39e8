"""A recording replayed as it was: every address is compared, and what differs is counted."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from recorded_programs.histories import RECORDINGS, history_of_recording
from recorded_programs.streams import load

from pytorch_memlab.history.model import AllocationHistory, EventLog
from pytorch_memlab.history.replay import check_replay, recorded_figures, what_if
from pytorch_memlab.history.snapshot import history_of
from pytorch_memlab.render.replay import text
from pytorch_memlab.simulation import replay as replay_trace, simulate

MIB = 2**20


@pytest.mark.parametrize("name", RECORDINGS)
def test_recordings_of_real_gpus_replay_at_every_address(name):
    trace = load(name)
    history = history_of_recording(trace)
    check = check_replay(history)
    assert check.matches
    kinds = [event[0] for event in trace["events"]]
    assert check.allocations == kinds.count("alloc")
    recorded = recorded_figures(history)
    stats = replay_trace(trace).stats
    assert recorded.peak_active == stats["active_bytes"]["all"]["peak"]
    assert recorded.peak_reserved == stats["reserved_bytes"]["all"]["peak"]
    for figures in (recorded, check.figures):
        assert figures.peak_active == recorded.peak_active
        assert figures.peak_reserved == recorded.peak_reserved
        assert figures.unused_at_peak == recorded.unused_at_peak
        assert figures.calls == recorded.calls
        assert figures.failures == ()


def test_blocks_of_equal_size_tell_the_version_that_recorded():
    # Both rules give the same addresses in most programs; this one needs the earlier rule.
    check = check_replay(history_of_recording(load("lm2.7b_ctx512_train")))
    assert check.matches
    assert check.order_by_address


@pytest.fixture
def history():
    """Two GPUs of 64 MiB; the first fills up, the second keeps 2 MiB from before."""
    with simulate("64MiB", count=2):
        early = torch.empty(2 * MIB, dtype=torch.uint8, device="cuda:1")
        torch.cuda.memory._record_memory_history()
        kept = [torch.empty(9 * MIB, dtype=torch.uint8, device="cuda") for _ in range(3)]
        side = torch.cuda.Stream()
        kept[1].record_stream(side)
        del kept[1]
        kept += [torch.empty(3 * MIB, dtype=torch.uint8, device="cuda:1")]
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
        kept.append(torch.empty(3 * MIB, dtype=torch.uint8, device="cuda"))
        found = history_of(torch.cuda.memory._snapshot())
        torch.cuda.memory._record_memory_history(enabled=None)
        del kept, early
    return found


def test_a_simulated_recording_replays_with_its_failure_on_each_gpu(history):
    for device in (0, 1):
        check = check_replay(history, device)
        assert check.matches
        figures = recorded_figures(history, device)
        assert check.figures == replace(
            figures,
            retries=None,
            failures=tuple(
                replace(one, message=other.message)
                for one, other in zip(figures.failures, check.figures.failures, strict=True)
            ),
        )
    [failure] = recorded_figures(history, 0).failures
    assert (failure.size, failure.reserved, failure.free) == (30 * MIB, 40 * MIB, 24 * MIB)


def changed(history, index, **fields):
    """The history with one event of the first GPU changed."""
    one = history.devices[0]
    events = list(one.events)
    events[index] = events[index]._replace(**fields)
    devices = [replace(one, events=EventLog(events)), *history.devices[1:]]
    return AllocationHistory(devices, history.stacks, history.settings)


def test_what_differs_is_counted_and_the_first_is_shown(history):
    events = history.devices[0].events
    second = [index for index, event in enumerate(events) if event.action == "alloc"][1]
    address = events[second].address + 512
    wrong = changed(history, second, address=address)
    check = check_replay(wrong)
    assert not check.matches
    # The allocation, the free that finds none at its address, and the request that takes the block.
    assert (check.differences, check.first.index) == (3, second)
    lines = text(what_if(wrong, settings="expandable_segments:True")).splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("replayed: "))
    assert lines[at] == (
        "replayed: 3 events differ, of 4 allocations and 2 changes of segments; the rows"
    )
    assert lines[at + 1] == "  below it are approximations"
    assert lines[at + 2].startswith(f"  the first is event {second + 1}: 9437184 bytes at 0x")


def test_another_address_is_noticed_though_the_end_is_the_same(history):
    # The block is taken twice.
    one = history.devices[0]
    freed = one.events[one.events.indexes("free_completed")[0]].address
    events = [
        event._replace(address=event.address + 512) if event.address == freed else event
        for event in one.events
    ]
    devices = [replace(one, events=EventLog(events)), *history.devices[1:]]
    check = check_replay(AllocationHistory(devices, history.stacks, history.settings))
    assert (check.differences, check.ends_alike, check.matches) == (2, True, False)


def test_another_end_is_noticed(history):
    one = history.devices[0]
    devices = [replace(one, segments=one.segments[:-1]), *history.devices[1:]]
    check = check_replay(AllocationHistory(devices, history.stacks, history.settings))
    assert not check.matches
