"""The moment of the highest active bytes, and the blocks in use then.

Note [Block sizes in a history]
An ``alloc`` event has the bytes requested, and active bytes count whole blocks. A block begins
where a free range begins; it takes the requested bytes, rounded, and all of the range if the rest
is too small to be split off. So the size follows from the address, the blocks in use and the
bounds of the segment, whichever rule chose the range.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from .._common.prose_size import prose_size
from ..simulation.allocator.replay import GROWTH, RELEASES
from ..simulation.allocator.settings import SMALL_SEGMENT_SIZE, SMALL_SIZE, AllocatorSettings
from .first_state import SegmentMap, block_size, first_state
from .model import AllocationHistory, Block, DeviceHistory, Event, Segment, device_name
from .settings import settings_of


@dataclass(frozen=True, slots=True)
class Peak:
    """The moment at which a GPU's active bytes are highest."""

    device: int  # index of the GPU; ``HOST`` for the host
    active: int  # bytes of all blocks in use then
    reserved: int  # bytes of all segments then
    event: int  # index of the last event before; -1 if that is the beginning of the history
    events: int
    blocks: tuple[Block, ...]  # those in use then, by address
    # requests that the GPU had no room for: index of each event, and the event
    failures: tuple[tuple[int, Event], ...] = ()
    run: str = ""  # label of the run in a merged profile, such as ``rank0``; empty in one of a run

    @property
    def name(self) -> str:
        return f"{self.run} {device_name(self.device)}".lstrip()

    def __repr__(self) -> str:
        """The bytes in use, and the device."""
        return f"<{type(self).__name__} of {self.summary()}>"

    def summary(self) -> str:
        count = len(self.blocks)
        size = f"{prose_size(self.active)} in {count:,} block{'s' * (count != 1)}"
        return f"{self.name}: {size}"


def find_peak(history: AllocationHistory, device: int = 0) -> Peak:
    """The first moment of the highest active bytes."""
    one = history.of_device(device)
    settings, log = settings_of(history.settings), one.events
    active, reserved = counters_of(one, settings)
    moment = active.index(max(active)) - 1
    allocated: dict[int, int] = {}
    blocks = first_state(one, settings).blocks.copy()
    for index, (action, address, *_) in enumerate(islice(log.changes(), moment + 1)):
        if action == "alloc":
            allocated[address] = index
        elif action == "free_completed" and allocated.pop(address, None) is None:
            blocks.pop(address, None)
    for index in allocated.values():
        event, size = log[index], active[index + 1] - active[index]
        blocks[event.address] = Block(event.address, size, event.size, *event[5:])
    in_use = tuple(blocks[address] for address in sorted(blocks))
    failures = tuple((index, log[index]) for index in log.indexes("oom"))
    figures = active[moment + 1], reserved[moment + 1]
    return Peak(device, *figures, moment, len(log), in_use, failures)


class Counters(NamedTuple):
    """The bytes of an allocator before the first event of its history, and after each."""

    active: list[int]  # of all blocks in use
    reserved: list[int]  # of all segments


def counters_of(device: DeviceHistory, settings: AllocatorSettings) -> Counters:
    segments, blocks = first_state(device, settings)
    sizes = _BlockSizes(device, settings, segments)
    active = sum(sizes.add(block.address, block.size) for block in blocks.values())
    reserved = sum(segment.size for segment in segments)
    found = Counters([active], [reserved])
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
        found.active.append(active)
        found.reserved.append(reserved)
    return found


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
        is_small = segment.size <= SMALL_SEGMENT_SIZE and rounded <= SMALL_SIZE
        rest = end - address - rounded
        splits_all = self._expandable or is_small
        return max(rounded, block_size(rounded, rest, splits_all, self._settings))

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
