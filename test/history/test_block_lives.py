"""Single blocks of a history: their sizes, and when they are in use."""

from __future__ import annotations

import torch

from pytorch_memlab import LineProfiler, simulate
from pytorch_memlab.history.block_lives import BlockLife, block_lives
from pytorch_memlab.history.model import (
    AllocationHistory,
    Category,
    DeviceHistory,
    Event,
    EventLog,
    Segment,
    UsedBlock,
)
from pytorch_memlab.history.peak import counters_of, settings_of
from pytorch_memlab.history.timeline import timeline_of


def test_blocks_live_from_one_moment_to_another():
    old = UsedBlock(0, 1024, 1000, 3, 0, Category.PARAMETERS, "Net")
    events = [
        Event("alloc", 2048, 700, 0, 0, 1, 2, Category.GRADIENTS, "Net.a"),
        Event("free_requested", 2048, 700, 0, 0, 1),
        Event("free_completed", 2048, 700, 0, 0, 1),
        Event("alloc", 2048, 512, 0, 0, 1),
        Event("free_completed", 0, 1000, 0, 0, 1),
    ]
    segments = [Segment(0, 4096, False, (UsedBlock(2048, 512, 512, 1),))]
    first = [Segment(0, 4096, False, (old,))]
    device = DeviceHistory(0, EventLog(events), segments, first)
    found = block_lives(AllocationHistory([device], [(), (), (), ()]), 0, 9)
    assert found.left_out == 0
    assert found.blocks == (
        BlockLife(1024, 0, 5, 3, 0, Category.PARAMETERS, "Net"),
        BlockLife(1024, 1, 3, 1, 2, Category.GRADIENTS, "Net.a"),
        BlockLife(512, 4, None, 1, 0, Category.UNKNOWN, ""),
    )


def work():
    layer = torch.nn.Linear(256, 256, device="cuda")
    for _ in range(3):
        layer(torch.ones(64, 256, device="cuda")).sum().backward()


def test_blocks_add_up_to_the_active_bytes_at_every_moment():
    with simulate("1GiB"), LineProfiler(work, history=True) as profiler:
        work()
    history = profiler.history()
    found = block_lives(history, 0, 10**9)
    (device,) = history.devices
    active, _ = counters_of(device, settings_of(history.settings))
    for moment, size in enumerate(active):
        in_use = [
            one.size
            for one in found.blocks
            if one.born <= moment and (one.died is None or moment < one.died)
        ]
        assert sum(in_use) == size, moment
    assert timeline_of(history).events == len(active) - 1


def test_those_stay_that_hold_most_for_most_of_the_time():
    sizes = [(1 << 20, 2), (4 << 20, 5), (2 << 20, 5), (512, 5)]
    events = [Event("alloc", at << 24, size, 0, 0, 1) for at, (size, _) in enumerate(sizes)]
    events.append(Event("free_completed", 0, 1 << 20, 0, 0, 1))
    device = DeviceHistory(0, EventLog(events), (), [Segment(0, 1 << 27, False, ())])
    found = block_lives(AllocationHistory([device], [(), ()]), 0, 2)
    assert [one.size for one in found.blocks] == [4 << 20, 2 << 20]
    assert found.left_out == 2
