"""The segments and blocks that exist before the first event of a history.

They follow from the segments at the end, with all events undone. Sizes of blocks that the history
frees are not recorded: Note [Block sizes in a history] in ``peak.py`` says how they follow.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from ..simulation.allocator.replay import GROWTH, RELEASES, AllocationTrace, RecordedSegment
from ..simulation.allocator.settings import (
    MIN_BLOCK_SIZE,
    SMALL_SEGMENT_SIZE,
    SMALL_SIZE,
    AllocatorSettings,
)
from .model import Block, DeviceHistory, EventLog, Segment


class FirstState(NamedTuple):
    """The memory of an allocator before the first event of its history."""

    segments: list[Segment]  # by address, each with its blocks in use
    blocks: dict[int, Block]  # those in use by address, also those in no known segment


def first_state(device: DeviceHistory, settings: AllocatorSettings) -> FirstState:
    known: FirstState | None = device.first_states.get(settings)
    if known is None:
        known = device.first_states[settings] = _first_state(device, settings)
    return known


def _first_state(device: DeviceHistory, settings: AllocatorSettings) -> FirstState:
    blocks: dict[int, Block] = {}
    if device.initial is not None:
        segments = sorted(device.initial, key=lambda segment: segment.address)
    else:
        inside: dict[int, list[tuple[Block, bool]]] = {}
        found = _first_segments(device.events, device.segments)
        first = sorted(_first_blocks(device, settings), key=lambda one: one[0].address)
        for block, is_exact in first:
            blocks[block.address] = block
            segment = found.at(block.address)
            if segment is not None:
                inside.setdefault(segment.address, []).append((block, is_exact))
        segments = [
            replace(one, blocks=tuple(_sized(one, inside.get(one.address, ()), settings)))
            for one in found
        ]
    blocks.update((block.address, block) for segment in segments for block in segment.blocks)
    return FirstState(segments, blocks)


class SegmentMap:
    """Segments by address; their blocks are not kept."""

    def __init__(self, segments: Iterable[Segment]) -> None:
        self._segments = {one.address: replace(one, blocks=()) for one in segments}
        self._starts = sorted(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        """By address."""
        return map(self._segments.__getitem__, self._starts)

    def at(self, address: int) -> Segment | None:
        """The segment that has an address."""
        index = bisect_right(self._starts, address) - 1
        if index < 0:
            return None
        found = self._segments[self._starts[index]]
        return found if address < found.address + found.size else None

    def add(self, start: int, size: int, stream: int, is_expandable: bool) -> None:
        """Add memory; pages of an expandable segment are joined with those beside them."""
        end, is_small = start + size, None
        for beside in (start - 1, end) if is_expandable else ():
            near = self.at(beside)
            if near is not None and near.is_expandable:
                self._pop(near)
                start, end = min(start, near.address), max(end, near.address + near.size)
                is_small = near.is_small
        self._insert(Segment(start, end - start, is_expandable, (), stream, is_small))

    def remove(self, start: int, size: int) -> bool:
        """Remove memory; return False if there is none."""
        around = self.at(start)
        if around is None:
            return False
        self._pop(around)
        end, last = start + size, around.address + around.size
        if around.address < start:
            self._insert(replace(around, size=start - around.address))
        if end < last:
            self._insert(replace(around, address=end, size=last - end))
        return True

    def _insert(self, segment: Segment) -> None:
        if segment.address not in self._segments:
            insort(self._starts, segment.address)
        self._segments[segment.address] = segment

    def _pop(self, segment: Segment) -> None:
        del self._starts[bisect_left(self._starts, segment.address)]
        del self._segments[segment.address]


def trace_of(device: DeviceHistory, settings: AllocatorSettings) -> AllocationTrace:
    """A history as a replay takes it."""
    initial, final = first_state(device, settings).segments, device.segments
    events = device.events.changes
    return AllocationTrace([*map(_recorded, initial)], events, [*map(_recorded, final)])


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
        size = block.size if is_exact else block_size(block.size, rest, splits_all, settings)
        yield replace(block, size=size)


def block_size(size: int, rest: int, splits_all: bool, settings: AllocatorSettings) -> int:
    """The bytes of a block where the free range has a rest that may be too small to be split off.

    Every block is split in the small pool, and while segments expand.
    """
    if splits_all:
        is_split = rest >= MIN_BLOCK_SIZE
    else:
        is_split = rest > SMALL_SIZE and size < settings.max_split_size
    return size if is_split else size + rest


def _first_segments(log: EventLog, segments: Sequence[Segment]) -> SegmentMap:
    found = SegmentMap(segments)
    kinds = [name in RELEASES or name in GROWTH for name in log.action_names]
    changes = [index for index, action in enumerate(log.actions) if kinds[action]]
    for index in reversed(changes):
        name = log.action_names[log.actions[index]]
        start, size, stream = log.addresses[index], log.sizes[index], log.streams[index]
        if name in RELEASES:
            found.add(start, size, stream, is_expandable=name == "segment_unmap")
        else:
            found.remove(start, size)
    return found


def _first_blocks(
    device: DeviceHistory, settings: AllocatorSettings
) -> Iterator[tuple[Block, bool]]:
    """Blocks in use before the first event, and whether their sizes are recorded."""
    log = device.events
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
