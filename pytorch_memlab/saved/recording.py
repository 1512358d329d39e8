"""Recordings: traces of a GPU's allocator, as ``replay`` and the tests read them.

``test/data/recordings/README.md`` describes the format.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from .._common.frames.user_code import base_name
from ..history.holders import innermost_of_user
from ..history.peak import first_state, serves_small, settings_of

if TYPE_CHECKING:
    from ..history.model import AllocationHistory, Event, Segment, Stack
    from ..profiles.verification import Verification

KINDS: Final = {
    "alloc": "alloc",
    "free_completed": "free",
    "segment_alloc": "segment_alloc",
    "segment_free": "segment_free",
    "segment_map": "segment_map",
    "segment_unmap": "segment_unmap",
    "oom": "oom",
}
"""The names of events in a recording, by those of PyTorch's memory history."""


def recording_file(
    history: AllocationHistory,  # of the GPU; the file has that of the first GPU that was compared
    verification: Verification,  # the comparison with its simulation
    versions: Mapping[str, str],  # of the software that made the recording
) -> bytes:
    """The file of what a GPU did, and of how its simulation compares: JSON, compressed."""
    content = recording(history, verification.comparisons[0].device, versions)
    content["versions"]["gpu"] = verification.gpu
    content["verified"] = [
        {
            "device": comparison.device,
            "equal": comparison.equal,
            "total": comparison.total,
            "peaks_recorded": [comparison.recorded.active, comparison.recorded.reserved],
            "peaks_simulated": [comparison.simulated.active, comparison.simulated.reserved],
        }
        for comparison in verification.comparisons
    ]
    return gzip.compress(json.dumps(content, separators=(",", ":")).encode(), mtime=0)


def recording(
    history: AllocationHistory, device: int, versions: Mapping[str, str]
) -> dict[str, Any]:
    """The trace of one GPU, without folders of files."""
    device_history = history.of_device(device)
    first = first_state(device_history, settings_of(history.settings))
    return {
        "settings": dict(history.settings),
        "versions": dict(versions),
        "initial": [_segment(segment, with_requests=True) for segment in first.segments],
        "events": list(_events(device_history.events, history.stacks)),
        "final": [_segment(segment, with_requests=False) for segment in device_history.segments],
    }


def _events(events: Sequence[Event], stacks: Sequence[Stack]) -> Iterator[list[Any]]:
    for event in events:
        kind = KINDS.get(event.action)
        if kind is None:
            continue
        row: list[Any] = [kind, event.address, event.size, event.stream]
        if kind == "alloc":
            row.append(_context(stacks[event.stack]))
        yield row


def _context(stack: Stack) -> dict[str, str]:
    if not stack:
        return {}
    frame, inner = innermost_of_user(stack), stack[0]
    where = f"{base_name(frame.filename)}:{frame.line}:{frame.name}"
    return {"where": where, "lib": f"{base_name(inner.filename)}:{inner.name}"}


def _segment(segment: Segment, *, with_requests: bool) -> dict[str, Any]:
    blocks: list[list[int]] = []
    address = segment.address
    for block in segment.blocks:
        if block.address > address:
            blocks.append([address, block.address - address, 0])
        requested = [block.requested] if with_requests else []
        blocks.append([block.address, block.size, 1, *requested])
        address = block.address + block.size
    end = segment.address + segment.size
    if address < end:
        blocks.append([address, end - address, 0])
    return {
        "address": segment.address,
        "size": segment.size,
        "stream": segment.stream,
        "pool": "small" if serves_small(segment) else "large",
        **({"expandable": True} if segment.is_expandable else {}),
        "blocks": blocks,
    }
