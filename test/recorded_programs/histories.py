"""Recorded traces of real GPUs as allocation histories."""

from __future__ import annotations

from pytorch_memlab.history.model import (
    AllocationHistory,
    DeviceHistory,
    Event,
    EventLog,
    Frame,
    Segment,
    UsedBlock,
)
from recorded_programs.streams import FOLDER

RECORDINGS = sorted(path.name.removesuffix(".json.gz") for path in FOLDER.glob("*.json.gz"))
_ACTIONS = {"free": "free_completed"}


def history_of_recording(trace):
    """A recorded trace as a history; the place of an allocation is its only frame."""
    stacks, events = [()], []
    for kind, address, size, stream, *context in trace["events"]:
        stack = 0
        if context and "where" in context[0]:
            file, line, name = context[0]["where"].split(":")
            stack = len(stacks)
            stacks.append((Frame(file, int(line), name),))
        events.append(Event(_ACTIONS.get(kind, kind), address, size, stream, 0, stack))
    initial = [
        Segment(
            one["address"],
            one["size"],
            False,
            tuple(
                UsedBlock(address, size, requested[0], None)
                for address, size, allocated, *requested in one["blocks"]
                if allocated
            ),
            one["stream"],
            one["pool"] == "small",
        )
        for one in trace["initial"]
    ]
    device = DeviceHistory(0, EventLog(events), (), initial)
    return AllocationHistory([device], stacks, trace["settings"])
