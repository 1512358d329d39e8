"""Snapshots of programs with CUDA graphs or ``torch.cuda.MemPool``: replayed pool by pool."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from support.spied_allocator import MB, allocator

from pytorch_memlab.history.replay import check_replay, recorded_figures, replay, what_if
from pytorch_memlab.history.snapshot import history_of
from pytorch_memlab.render.replay import text
from pytorch_memlab.saved.histories import HistoryPart, history_data, read_history

GRAPH, POOL = (0, 1), (2, 0)


def recorded(conf: str, *, pool_of_events: bool = True, ends: bool = True, begin: int = 0):
    """A snapshot of requests at random to three pools, one of which may end before it is taken."""
    choose = random.Random(0)
    made = allocator(conf)
    trace, pools = [], {}
    pool_id = None

    def note(action, address, size, stream):
        # The pool of a block is known from its allocation, that of a segment while it is there.
        if action in ("alloc", "segment_alloc", "segment_map"):
            pools[address] = pool_id
        entry = {"action": action, "addr": address, "size": size, "stream": stream}
        if pool_of_events:
            entry["pool_id"] = pools.get(address) or (0, 0)
        trace.append(entry)

    made.observe(note)
    living = {None: [], GRAPH: [], POOL: []}
    for step in range(600):
        if step == begin:
            trace.clear()
        pool_id = choose.choice([None, GRAPH] if 300 < step < 400 else [None, GRAPH, POOL])
        blocks = living[pool_id]
        if blocks and choose.random() < len(blocks) / 40:
            made.free(blocks.pop(choose.randrange(len(blocks))))
        else:
            size = choose.choice((choose.randint(1, MB), choose.randint(1, 30 * MB)))
            blocks.append(made.malloc(size, pool_id=pool_id))
    if ends:
        while living[POOL]:
            made.free(living[POOL].pop())
        made.end_private_pool(POOL)
        made.empty_cache(POOL)
    for blocks in living.values():
        for address in blocks[::2]:
            made.free(address)
    made.empty_cache()
    pool_id = GRAPH
    for size in range(MB, 9 * MB, MB // 2):
        made.malloc(size, pool_id=GRAPH)
    settings = {"PYTORCH_CUDA_ALLOC_CONF": conf}
    segments = made.segments()
    return {"segments": segments, "device_traces": [trace], "allocator_settings": settings}


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_every_allocation_gets_its_address(conf):
    history = history_of(recorded(conf))
    check = check_replay(history)
    assert check.matches, check.first
    assert check.allocations > 300
    figures = recorded_figures(history)
    assert check.figures.calls == figures.calls
    assert min(figures.calls.unmaps if conf else figures.calls.frees, figures.peak_reserved) > 0
    # In one pool for all, blocks would be shared.
    snapshot = recorded(conf)
    for one in (*snapshot["segments"], *snapshot["device_traces"][0]):
        one.pop("segment_pool_id", None)
        one.pop("pool_id", None)
    assert not check_replay(history_of(snapshot)).matches


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_every_allocation_gets_its_address_after_a_beginning_that_was_not_recorded(conf):
    history = history_of(recorded(conf, begin=400))
    check = check_replay(history)
    assert check.matches, check.first


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_until_2_11_segments_that_are_left_tell_the_pool(conf):
    history = history_of(recorded(conf, pool_of_events=False, ends=False))
    assert not history.devices[0].events.pools
    assert check_replay(history).matches


def test_until_2_11_the_pool_of_segments_that_are_gone_is_unknown():
    snapshot = recorded("", pool_of_events=False)
    [trace] = snapshot["device_traces"]
    history = history_of(snapshot)
    assert not history.devices[0].events.pools
    check = check_replay(history)
    # The segments of the pool that ended are unknown: its requests are taken for those of all.
    assert check.differences
    kept = {one["address"] for one in snapshot["segments"]}
    gone = [one["addr"] for one in trace if one["action"] == "segment_free"]
    assert gone
    assert not kept.intersection(gone)


def test_requests_of_other_settings_keep_to_their_pools():
    history = history_of(recorded(""))
    result = replay(history, settings="expandable_segments:True")
    assert result.events == len(history.devices[0].events)
    one_pool = history_of(recorded(""))
    [device] = one_pool.devices
    device.events.pools.clear()
    segments = [replace(segment, pool_id=None) for segment in device.segments]
    one_pool = replace(one_pool, devices=[replace(device, segments=segments)])
    shared = replay(one_pool, settings="expandable_segments:True")
    assert result.peak_active == shared.peak_active
    assert result.peak_reserved > shared.peak_reserved


def test_the_report_names_private_pools():
    note = (
        "private pools, of CUDA graphs or torch.cuda.MemPool: 2; each keeps its blocks for itself"
    )
    snapshot = recorded("")
    assert note in " ".join(text(what_if(history_of(snapshot))).split())
    for one in (*snapshot["segments"], *snapshot["device_traces"][0]):
        one.pop("segment_pool_id", None)
        one.pop("pool_id", None)
    assert "private pools" not in text(what_if(history_of(snapshot)))


def test_a_saved_history_has_its_pools():
    history = history_of(recorded(""))
    again = read_history(HistoryPart(**history_data(history)))
    assert again == history
    assert again.devices[0].events.pools == history.devices[0].events.pools
    assert {one.pool_id for one in again.devices[0].segments} == {None, GRAPH}
    assert check_replay(again).matches
