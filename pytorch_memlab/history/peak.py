"""The moment of the highest active bytes, and the blocks in use then and at the beginning.

The segments and blocks that exist before the first event follow from the segments at the end, with
all events undone. Sizes of blocks that the history frees are not recorded.

Note [Block sizes in a history]
An ``alloc`` event has the bytes requested, and active bytes count whole blocks. A block begins
where a free range begins; it takes the requested bytes, rounded, and all of the range if the rest
is too small to be split off. So the size follows from the address, the blocks in use and the
bounds of the segment, whichever rule chose the range.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

from .._common.text.prose_size import counted, prose_size
from ..errors import AllocatorSettingsError
from ..simulation.allocator.events import GROWTH, RELEASES
from ..simulation.allocator.out_of_memory import NO_PRIVATE_MEMORY, PrivateMemory
from ..simulation.allocator.replay import AllocationTrace, RecordedSegment
from ..simulation.allocator.settings import (
    MIN_BLOCK_SIZE,
    NO_LIMIT,
    ROUNDUP_INTERVALS,
    SMALL_SEGMENT_SIZE,
    SMALL_SIZE,
    AllocatorSettings,
    split_settings,
)
from .model import (
    AllocationHistory,
    DeviceHistory,
    Event,
    EventLog,
    PoolId,
    Segment,
    UsedBlock,
    device_name,
)


def settings_of(settings: Mapping[str, object]) -> AllocatorSettings:
    """The settings of a history's allocators.

    >>> text = "max_split_size_mb:64,a_later_setting:1"
    >>> settings = settings_of({"PYTORCH_CUDA_ALLOC_CONF": text, "expandable_segments": True})
    >>> settings.max_split_size // 2**20, settings.expandable_segments
    (64, True)
    """
    supported = []
    for item in split_settings(str(settings.get("PYTORCH_CUDA_ALLOC_CONF") or "")):
        with suppress(AllocatorSettingsError, ValueError):
            AllocatorSettings.parse(item)
            supported.append(item)
    return replace(AllocatorSettings.parse(",".join(supported)), **dict(_numbers(settings)))


def _numbers(settings: Mapping[str, object]) -> Iterator[tuple[str, Any]]:
    size = settings.get("max_split_size")
    if type(size) is int and size:
        # PyTorch writes no limit as -1: as a signed number.
        yield "max_split_size", NO_LIMIT if size < 0 else size
    threshold = settings.get("garbage_collection_threshold")
    if type(threshold) is float and 0 <= threshold < 1:
        yield "garbage_collection_threshold", threshold
    if type(settings.get("expandable_segments")) is bool:
        yield "expandable_segments", settings["expandable_segments"]
    divisions = settings.get("roundup_power2_divisions")
    if isinstance(divisions, Mapping) and len(divisions) == ROUNDUP_INTERVALS:
        steps = tuple(divisions.values())
        if all(type(step) is int and 0 <= step <= 2**16 for step in steps):
            yield "roundup_power2_divisions", steps


class FirstState(NamedTuple):
    """The memory of an allocator before the first event of its history."""

    segments: list[Segment]  # by address, each with its blocks in use
    blocks: dict[int, UsedBlock]  # those in use by address, also those in no known segment
    # of the events of private pools, by index, as far as they are known without the segments
    pools: dict[int, PoolId]


def first_state(device: DeviceHistory, settings: AllocatorSettings) -> FirstState:
    state: FirstState | None = device.first_states.get(settings)
    if state is None:
        state = device.first_states[settings] = _first_state(device, settings)
    return state


def _first_state(device: DeviceHistory, settings: AllocatorSettings) -> FirstState:
    if device.initial is not None:
        segments = sorted(device.initial, key=lambda segment: segment.address)
        return FirstState(segments, _blocks_by_address(segments), device.events.pools)
    blocks: dict[int, UsedBlock] = {}
    seen: set[int] = set()
    for action, address, size, _ in device.events.changes():
        if action == "alloc":
            seen.add(address)
        elif action == "free_completed" and address not in seen:
            seen.add(address)
            rounded = settings.round_size(size) if device.is_rounded else size
            blocks[address] = UsedBlock(address, rounded, size, None)
    freed = set(blocks)  # whose sizes are not recorded
    at_end = _blocks_by_address(device.segments)
    blocks |= {address: block for address, block in at_end.items() if address not in seen}
    segment_map, pools = _first_segments(device.events, device.segments)
    inside: defaultdict[int, list[UsedBlock]] = defaultdict(list)
    for address in sorted(blocks):
        segment = segment_map.at(address)
        if segment is not None:
            inside[segment.address].append(blocks[address])
    segments = []
    for map_segment in segment_map:
        parts, splits_all = (
            inside[map_segment.address],
            map_segment.is_expandable or serves_small(map_segment),
        )
        ends = [*(block.address for block in parts[1:]), map_segment.address + map_segment.size]
        for place, (block, end) in enumerate(zip(parts, ends, strict=False)):  # none if it is empty
            if block.address in freed:
                rest = end - block.address - block.size
                size = _block_size(block.size, rest, splits_all, settings)
                parts[place] = replace(block, size=size)
        segments.append(replace(map_segment, blocks=tuple(parts)))
    return FirstState(segments, blocks | _blocks_by_address(segments), pools)


def _blocks_by_address(segments: Iterable[Segment]) -> dict[int, UsedBlock]:
    return {block.address: block for segment in segments for block in segment.blocks}


def _first_segments(
    log: EventLog, segments: Sequence[Segment]
) -> tuple[SegmentMap, dict[int, PoolId]]:
    """The segments before the first event, and the private pools of all that come or go."""
    segment_map, pools = SegmentMap(segments), log.pools.copy()
    changes = [index for name in (*GROWTH, *RELEASES) for index in log.indexes(name)]
    for index in sorted(changes, reverse=True):
        event = log[index]
        if event.action in RELEASES:
            is_expandable = event.action == "segment_unmap"
            segment_map.add(
                event.address, event.size, event.stream, is_expandable, pools.get(index)
            )
        segment = segment_map.at(event.address)
        if segment is not None and segment.pool_id is not None:
            pools[index] = segment.pool_id
        if event.action in GROWTH:
            segment_map.remove(event.address, event.size)
    return segment_map, pools


class SegmentMap:
    """Segments by address; their blocks are not kept."""

    def __init__(self, segments: Iterable[Segment]) -> None:
        self._segments = {segment.address: replace(segment, blocks=()) for segment in segments}
        self._starts = sorted(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        """By address."""
        return map(self._segments.__getitem__, self._starts)

    def at(self, address: int) -> Segment | None:
        """The segment that has an address."""
        index = bisect_right(self._starts, address) - 1
        if index < 0:
            return None
        segment = self._segments[self._starts[index]]
        return segment if address < segment.address + segment.size else None

    def add(
        self,
        start: int,
        size: int,
        stream: int,
        is_expandable: bool,
        pool_id: PoolId | None = None,
    ) -> None:
        """Add memory; pages of an expandable segment are joined with those beside them."""
        end, is_small = start + size, None
        for beside in (start - 1, end) if is_expandable else ():
            near = self.at(beside)
            if near is not None and near.is_expandable:
                self._pop(near)
                start, end = min(start, near.address), max(end, near.address + near.size)
                is_small, pool_id = near.is_small, near.pool_id
        self._insert(Segment(start, end - start, is_expandable, (), stream, is_small, pool_id))

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

    def serves(self, address: int, size: int) -> None:
        """Note a request that a segment serves: of an expandable one, it tells the pool."""
        segment = self.at(address)
        if segment is not None and segment.is_expandable and segment.is_small is None:
            self._insert(replace(segment, is_small=size <= SMALL_SIZE))

    def _insert(self, segment: Segment) -> None:
        if segment.address not in self._segments:
            insort(self._starts, segment.address)
        self._segments[segment.address] = segment

    def _pop(self, segment: Segment) -> None:
        del self._starts[bisect_left(self._starts, segment.address)]
        del self._segments[segment.address]


def trace_of(device: DeviceHistory, settings: AllocatorSettings) -> AllocationTrace:
    """A history as a replay takes it."""
    first, final = first_state(device, settings), device.segments
    return AllocationTrace(
        [*map(_recorded, first.segments)],
        device.events.changes,
        [*map(_recorded, final)],
        pools=_pools(device.events, first),
    )


def _pools(log: EventLog, first: FirstState) -> dict[int, PoolId]:
    """The private pools of events: until 2.11, PyTorch records those of segments only."""
    pools = first.pools.copy()
    if not pools and all(segment.pool_id is None for segment in first.segments):
        return pools
    segments = SegmentMap(first.segments)
    for index, (action, address, size, stream) in enumerate(log.changes()):
        if action in GROWTH:
            segments.add(address, size, stream, action == "segment_map", pools.get(index))
        elif action in RELEASES:
            segments.remove(address, size)
        elif action == "alloc" and (segment := segments.at(address)) and segment.pool_id:
            pools[index] = segment.pool_id
    return pools


def _recorded(segment: Segment) -> RecordedSegment:
    parts: list[tuple[int, int | None]] = []
    address = segment.address
    for block in (*segment.blocks, UsedBlock(segment.address + segment.size, 0, 0, None)):
        if block.address > address:
            parts.append((block.address - address, None))
        if block.size:
            parts.append((block.size, block.requested))
        address = block.address + block.size
    kinds = serves_small(segment), segment.is_expandable
    return RecordedSegment(segment.address, segment.stream, *kinds, parts, segment.pool_id)


def serves_small(segment: Segment) -> bool:
    """True if a segment belongs to the pool of blocks of up to 1 MiB."""
    if segment.is_small is not None:
        return segment.is_small
    if segment.is_expandable:
        return all(block.requested <= SMALL_SIZE for block in segment.blocks)
    return segment.size <= SMALL_SEGMENT_SIZE


def _block_size(size: int, rest: int, splits_all: bool, settings: AllocatorSettings) -> int:
    """The bytes of a block where the rest of the free range may be too small to be split off."""
    # Every block is split in the small pool, and while segments expand.
    if splits_all:
        is_split = rest >= MIN_BLOCK_SIZE
    else:
        is_split = rest > SMALL_SIZE and size < settings.max_split_size
    return size if is_split else size + rest


@dataclass(frozen=True, slots=True)
class Peak:
    """The moment at which a GPU's active bytes are highest."""

    device: int  # index of the GPU; ``HOST`` for the host
    active: int  # bytes of all blocks in use then
    reserved: int  # bytes of all segments then
    event: int  # index of the last event before; -1 if that is the beginning of the history
    events: int
    blocks: tuple[UsedBlock, ...]  # those in use then, by address
    # requests that the GPU had no room for: index of each event, and the event
    failures: tuple[tuple[int, Event], ...] = ()
    run: str = ""  # label of the run in a merged profile, such as ``rank0``; empty in one of a run
    private: PrivateMemory = NO_PRIVATE_MEMORY  # of private pools then
    # indexes of the stacks of requests for whose sake private pools took memory, as far as known
    private_stacks: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return device_name(self.device, self.run)

    def __repr__(self) -> str:
        """The bytes in use, and the device."""
        return f"<{type(self).__name__} of {self.summary()}>"

    def summary(self) -> str:
        return f"{self.name}: {prose_size(self.active)} in {counted(len(self.blocks), 'block')}"


def find_peak(history: AllocationHistory, device: int = 0) -> Peak:
    """The first moment of the highest active bytes."""
    device_history = history.of_device(device)
    settings, log = settings_of(history.settings), device_history.events
    active, reserved = counters_of(device_history, settings)
    moment = active.index(max(active)) - 1
    allocated: dict[int, int] = {}
    blocks = first_state(device_history, settings).blocks.copy()
    for index, (action, address, *_) in enumerate(islice(log.changes(), moment + 1)):
        if action == "alloc":
            allocated[address] = index
        elif action == "free_completed" and allocated.pop(address, None) is None:
            blocks.pop(address, None)
    for index in allocated.values():
        event, size = log[index], active[index + 1] - active[index]
        blocks[event.address] = UsedBlock(event.address, size, event.size, *event[5:])
    in_use = tuple(blocks[address] for address in sorted(blocks))
    failures = tuple((index, log[index]) for index in log.indexes("oom"))
    figures = active[moment + 1], reserved[moment + 1]
    private, stacks = _private_memory(device_history, settings, moment, in_use)
    return Peak(
        *(device, *figures, moment, len(log), in_use, failures),
        private=private,
        private_stacks=stacks,
    )


def _private_memory(
    device: DeviceHistory, settings: AllocatorSettings, moment: int, in_use: Sequence[UsedBlock]
) -> tuple[PrivateMemory, tuple[int, ...]]:
    """The memory of private pools after an event, and the stacks that took it."""
    first, log = first_state(device, settings), device.events
    if not first.pools and all(segment.pool_id is None for segment in first.segments):
        return NO_PRIVATE_MEMORY, ()
    segments, taken_at = SegmentMap(first.segments), dict[int, int]()
    for index, (action, address, size, stream) in enumerate(islice(log.changes(), moment + 1)):
        if action in GROWTH:
            pool_id = first.pools.get(index)
            segments.add(address, size, stream, action == "segment_map", pool_id)
            if pool_id is not None:
                # A simulation tells the stack with the block alone. That comes next: no segment
                # is the last event before a peak.
                taken_at[address] = log.stacks[index] or log.stacks[index + 1]
        elif action in RELEASES:
            segments.remove(address, size)
            taken_at.pop(address, None)
    reserved = sum(segment.size for segment in segments if segment.pool_id)
    homes = ((block, segments.at(block.address)) for block in in_use)
    used = sum(block.size for block, home in homes if home is not None and home.pool_id)
    stacks = tuple(dict.fromkeys(filter(None, taken_at.values())))
    return PrivateMemory(reserved, reserved - used), stacks


def counters_of(device: DeviceHistory, settings: AllocatorSettings) -> tuple[list[int], list[int]]:
    """Bytes of the blocks in use, and of the segments: before the first event, and after each."""
    segments, blocks, _ = first_state(device, settings)
    sizes = _BlockSizes(device, settings, segments)
    active = sum(sizes.add(block.address, block.size) for block in blocks.values())
    reserved = sum(segment.size for segment in segments)
    all_active, all_reserved = [active], [reserved]
    for action, address, size, stream in device.events.changes():
        if action == "alloc":
            active += sizes.add(address, sizes.of(address, size))
        elif action == "free_completed":
            active -= sizes.remove(address)
        elif action in GROWTH:
            sizes.segments.add(address, size, stream, action == "segment_map")
            reserved += size
        elif action in RELEASES and sizes.segments.remove(address, size):
            reserved -= size
        all_active.append(active)
        all_reserved.append(reserved)
    return all_active, all_reserved


class _BlockSizes:
    """The sizes of the blocks in use; see Note [Block sizes in a history]."""

    def __init__(
        self, device: DeviceHistory, settings: AllocatorSettings, first: Sequence[Segment]
    ) -> None:
        self.segments = SegmentMap(first)
        self._settings = settings
        self._is_rounded = device.is_rounded
        self._expandable = "segment_map" in device.events.action_names or any(
            segment.is_expandable for segment in (*first, *device.segments)
        )
        self._addresses: list[int] = []
        self._sizes: dict[int, int] = {}

    def of(self, address: int, requested: int) -> int:
        """The bytes of the block that a request gets at an address."""
        if not self._is_rounded:
            return requested
        rounded = self._settings.round_size(requested)
        segment = self.segments.at(address)
        if segment is None:
            return rounded
        end = segment.address + segment.size
        after = bisect_right(self._addresses, address)
        if after < len(self._addresses):
            end = min(end, self._addresses[after])
        rest = end - address - rounded
        splits_all = self._expandable or serves_small(segment)
        return max(rounded, _block_size(rounded, rest, splits_all, self._settings))

    def add(self, address: int, size: int) -> int:
        insort(self._addresses, address)
        self._sizes[address] = size
        return size

    def remove(self, address: int) -> int:
        size = self._sizes.pop(address, None)
        if size is None:
            return 0
        del self._addresses[bisect_left(self._addresses, address)]
        return size
