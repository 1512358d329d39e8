"""The moment of the highest active bytes, and the blocks in use then.

Note [Block sizes in a history]
An ``alloc`` event has the bytes requested, and active bytes count whole blocks. A block begins
where a free range begins; it takes the requested bytes, rounded, and all of the range if the rest
is too small to be split off. So the size follows from the address, the blocks in use and the
bounds of the segment, whichever rule chose the range.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass
from itertools import islice

from .._common.prose_size import prose_size
from ..simulation.allocator.replay import GROWTH, RELEASES
from ..simulation.allocator.settings import (
    MIN_BLOCK_SIZE,
    SMALL_SEGMENT_SIZE,
    SMALL_SIZE,
    AllocatorSettings,
)
from .event_log import log_of
from .first_state import first_blocks, first_state
from .model import AllocationHistory, Block, DeviceHistory, Event, device_name
from .settings import settings_of


@dataclass(frozen=True, slots=True)
class Peak:
    """The moment at which a GPU's active bytes are highest."""

    device: int  # index of the GPU; -1 for the host
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
    settings = settings_of(history.settings)
    state = AllocatorState(one, settings)
    log = log_of(one.events)
    highest, reserved, moment = state.active, state.reserved, -1
    sizes = array("Q")
    follow = state.follow
    for index, (action, address, size, _) in enumerate(log.changes()):
        sizes.append(follow(action, address, size))
        if state.active > highest:
            highest, reserved, moment = state.active, state.reserved, index
    allocated: dict[int, int] = {}
    blocks = dict(state.blocks)
    for index, (action, address, *_) in enumerate(islice(log.changes(), moment + 1)):
        if action == "alloc":
            allocated[address] = index
        elif action == "free_completed" and allocated.pop(address, None) is None:
            blocks.pop(address, None)
    for index in allocated.values():
        event = log[index]
        blocks[event.address] = Block(event.address, sizes[index], event.size, *event[5:])
    in_use = tuple(blocks[address] for address in sorted(blocks))
    failures = tuple((index, log[index]) for index in log.indexes("oom"))
    return Peak(device, highest, reserved, moment, len(one.events), in_use, failures)


class AllocatorState:
    """Segments and blocks of a GPU, followed from the beginning of its history."""

    def __init__(self, device: DeviceHistory, settings: AllocatorSettings) -> None:
        self._settings = settings
        self._is_rounded = device.is_rounded
        self._starts: list[int] = []
        self._ends: dict[int, int] = {}
        first = first_state(device, settings)
        self._expandable = "segment_map" in log_of(device.events).action_names or any(
            segment.is_expandable for segment in (*first, *device.segments)
        )
        self._addresses: list[int] = []
        self._sizes: dict[int, int] = {}
        self.blocks = {block.address: block for block, _ in first_blocks(device, settings)}
        self.active = 0
        self.reserved = 0
        for segment in first:
            self._add_range(segment.address, segment.address + segment.size)
            self.blocks.update((block.address, block) for block in segment.blocks)
        for block in self.blocks.values():
            self._add(block.address, block.size)

    def follow(self, action: str, address: int, size: int) -> int:
        if action == "alloc":
            size = self._size_of(address, size)
            self._add(address, size)
            return size
        if action == "free_completed":
            self._remove(address)
        elif action in GROWTH:
            self._add_range(address, address + size)
        elif action in RELEASES:
            self._remove_range(address, address + size)
        return 0

    def _size_of(self, address: int, requested: int) -> int:
        if not self._is_rounded:
            return requested
        rounded = self._settings.round_size(requested)
        start, end = self._range_of(address)
        after = bisect_right(self._addresses, address)
        if after < len(self._addresses):
            end = min(end, self._addresses[after])
        rest = end - address - rounded
        is_small = end - start <= SMALL_SEGMENT_SIZE and rounded <= SMALL_SIZE
        if self._expandable or is_small:
            splits = rest >= MIN_BLOCK_SIZE
        else:
            splits = rest > SMALL_SIZE and rounded < self._settings.max_split_size
        return rounded if splits else max(rounded, rounded + rest)

    def _range_of(self, address: int) -> tuple[int, int]:
        """The mapped range around an address; an empty one for an address that no segment has."""
        index = bisect_right(self._starts, address) - 1
        if index >= 0:
            start = self._starts[index]
            if address < self._ends[start]:
                return start, self._ends[start]
        return address, address

    def _add(self, address: int, size: int) -> None:
        insort(self._addresses, address)
        self._sizes[address] = size
        self.active += size

    def _remove(self, address: int) -> None:
        size = self._sizes.pop(address, None)
        if size is not None:
            del self._addresses[bisect_left(self._addresses, address)]
            self.active -= size

    def _add_range(self, start: int, end: int) -> None:
        self.reserved += end - start
        index = bisect_left(self._starts, start)
        if self._expandable and index < len(self._starts) and self._starts[index] == end:
            following = self._starts.pop(index)
            end = self._ends.pop(following)
        if self._expandable and index and self._ends[self._starts[index - 1]] == start:
            self._ends[self._starts[index - 1]] = end
            return
        self._starts.insert(index, start)
        self._ends[start] = end

    def _remove_range(self, start: int, end: int) -> None:
        first, last = self._range_of(start)
        if first == last:
            return
        self.reserved -= end - start
        self._starts.remove(first)
        del self._ends[first]
        for left, right in ((first, start), (end, last)):
            if left < right:
                insort(self._starts, left)
                self._ends[left] = right
