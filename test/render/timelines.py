"""Timelines that tests draw."""

from __future__ import annotations

from pytorch_memlab.history.model import (
    AllocationHistory,
    Category,
    DeviceHistory,
    Event,
    EventLog,
    Frame,
    Segment,
)
from pytorch_memlab.history.timeline import Band, Timeline, timeline_of

MIB = 2**20
HOSTILE = "</script><img src=x onerror=alert(1)>$a$'\"&\u202e\ud800\n"
STEP = Frame("/nowhere/train.py", 9, "step")

SMALL = Timeline(
    device=0,
    events=10,
    by="category",
    points=(-1, 1, 4, 9),
    seconds=(0.0, 0.5, 1.0, 2.5),
    active=(0, 4 * MIB, 6 * MIB, 2 * MIB),
    reserved=(0, 20 * MIB, 20 * MIB, 20 * MIB),
    bands=(
        Band(Category.PARAMETERS.value, (0, MIB, MIB, MIB)),
        Band(Category.SAVED.value, (0, 3 * MIB, 5 * MIB, MIB)),
    ),
    frames=(None, STEP, STEP, None),
    peak=2,
    steps=(7,),
    failures=(8,),
    capacity=40 * MIB,
)


def hostile():
    """A timeline all of whose names try to leave their place."""
    frame = Frame(f"/nowhere/{HOSTILE}.py", 1, HOSTILE)
    events = [Event("alloc", 0, MIB, 0, 0, 1)]
    device = DeviceHistory(0, EventLog(events), (), [Segment(0, 20 * MIB, False, ())])
    return timeline_of(AllocationHistory([device], [(), (frame,)]), 0, 30 * MIB)
