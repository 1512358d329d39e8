"""The segments and blocks that exist before the first event of a history.

They follow from the segments at the end, with all events undone. Sizes of blocks that the history
frees are not recorded: Note [Block sizes in a history] in ``peak.py`` says how they follow.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..simulation.allocator.replay import GROWTH, RELEASES, RecordedSegment, Recording
from ..simulation.allocator.settings import (
    MIN_BLOCK_SIZE,
    SMALL_SEGMENT_SIZE,
    SMALL_SIZE,
    AllocatorSettings,
)
from .event_log import EventLog, log_of
from .model import Block, DeviceHistory, Segment


def first_state(device: DeviceHistory, settings: AllocatorSettings) -> list[Segment]:
    """The segments before the first event, by address, each with its blocks in use."""
    known = device.first_segments.get(settings)
    if known is None:
        known = device.first_segments[settings] = _first_state(device, settings)
    return known.copy()


def _first_state(device: DeviceHistory, settings: AllocatorSettings) -> list[Segment]:
    if device.initial is not None:
        return sorted(device.initial, key=lambda segment: segment.address)
    log = log_of(device.events)
    segments = _first_segments(log, device.segments)
    blocks = first_blocks(device, settings)
    starts = [segment.address for segment in segments]
    inside: list[list[tuple[Block, bool]]] = [[] for _ in segments]
    for block, is_exact in sorted(blocks, key=lambda pair: pair[0].address):
        index = bisect_right(starts, block.address) - 1
        if index >= 0 and block.address < segments[index].address + segments[index].size:
            inside[index].append((block, is_exact))
    return [
        replace(segment, blocks=tuple(_sized(segment, some, settings)))
        for segment, some in zip(segments, inside, strict=True)
    ]


def recording_of(device: DeviceHistory, settings: AllocatorSettings) -> Recording:
    """A history as a recording of an allocator."""
    initial, final = first_state(device, settings), device.segments
    events = log_of(device.events).changes
    return Recording([*map(_recorded, initial)], events, [*map(_recorded, final)])


def _recorded(segment: Segment) -> RecordedSegment:
    parts: list[tuple[int, int | None]] = []
    address = segment.address
    for block in (*segment.blocks, Block(segment.address + segment.size, 0, 0, None)):
        if block.address > address:
            parts.append((block.address - address, None))
        if block.size:
            parts.append((block.size, block.requested))
        address = block.address + block.size
    kinds = _serves_small(segment), segment.is_expandable
    return RecordedSegment(segment.address, segment.stream, *kinds, parts)


def _serves_small(segment: Segment) -> bool:
    """True if a segment belongs to the pool of blocks of up to 1 MiB."""
    if segment.is_small is not None:
        return segment.is_small
    if segment.is_expandable:
        return all(block.requested <= SMALL_SIZE for block in segment.blocks)
    return segment.size <= SMALL_SEGMENT_SIZE


def _sized(
    segment: Segment, blocks: Sequence[tuple[Block, bool]], settings: AllocatorSettings
) -> Iterator[Block]:
    """Blocks of a segment, in order, with a rest that was too small to be split off."""
    splits_all = segment.is_expandable or _serves_small(segment)
    starts = [block.address for block, _ in blocks]
    ends = [*starts[1:], segment.address + segment.size]
    for (block, is_exact), end in zip(blocks, ends, strict=False):  # none of an empty segment
        rest = end - block.address - block.size
        if splits_all:
            is_split = rest >= MIN_BLOCK_SIZE
        else:
            is_split = rest > SMALL_SIZE and block.size < settings.max_split_size
        yield block if is_exact or is_split else replace(block, size=block.size + rest)


def _first_segments(log: EventLog, segments: Sequence[Segment]) -> list[Segment]:
    known = {one.address: replace(one, blocks=()) for one in segments}
    starts = sorted(known)
    kinds = [1 if name in RELEASES else 2 if name in GROWTH else 0 for name in log.action_names]
    changes = [index for index, action in enumerate(log.actions) if kinds[action]]

    def add(segment: Segment) -> None:
        insort(starts, segment.address)
        known[segment.address] = segment

    def pop(address: int) -> Segment | None:
        index = bisect_right(starts, address) - 1
        if index < 0 or address >= starts[index] + known[starts[index]].size:
            return None
        return known.pop(starts.pop(index))

    for index in reversed(changes):
        name = log.action_names[log.actions[index]]
        start, size, stream = log.addresses[index], log.sizes[index], log.streams[index]
        end = start + size
        is_expandable = name in ("segment_map", "segment_unmap")
        if name in RELEASES:
            is_small: bool | None = None
            if is_expandable:
                before, after = pop(start - 1) if start else None, pop(end)
                for near in (before, after):
                    if near is not None and near.is_expandable:
                        start, end = min(start, near.address), max(end, near.address + near.size)
                        is_small = near.is_small
                    elif near is not None:
                        add(near)
            add(Segment(start, end - start, is_expandable, (), stream, is_small))
            continue
        around = pop(start)
        if around is not None:
            last = around.address + around.size
            if around.address < start:
                add(replace(around, size=start - around.address))
            if end < last:
                add(replace(around, address=end, size=last - end))
    return [known[start] for start in starts]


def first_blocks(
    device: DeviceHistory, settings: AllocatorSettings
) -> Iterator[tuple[Block, bool]]:
    """Blocks in use before the first event, and whether their sizes are recorded."""
    if device.initial is not None:
        for segment in device.initial:
            for block in segment.blocks:
                yield block, True
        return
    log = log_of(device.events)
    names = log.action_names
    allocs = {number for number, name in enumerate(names) if name == "alloc"}
    frees = {number for number, name in enumerate(names) if name == "free_completed"}
    seen: set[int] = set()
    for action, address, size in zip(log.actions, log.addresses, log.sizes, strict=True):
        if action in allocs:
            seen.add(address)
        elif action in frees and address not in seen:
            seen.add(address)
            rounded = settings.round_size(size) if device.is_rounded else size
            yield Block(address, rounded, size, None), False
    for segment in device.segments:
        for block in segment.blocks:
            if block.address not in seen:
                yield block, True
