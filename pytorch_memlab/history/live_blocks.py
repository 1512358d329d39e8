"""The blocks in use on one device, those that were in use at its peak, and the log of events."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import time_ns
from typing import Any, Final, NamedTuple

import torch

from .._common.frames.call_stacks import TakenStack, call_stacks, capture
from .._common.process.garbage_collection import no_garbage_collection
from .._common.torch.forward_ops import ForwardOps
from ..simulation.inspect import NO_PRIVATE_MEMORY, LoggedBlock, PrivateMemory
from .earlier_memory import EarlierMemory, end_of_request
from .model import Category, EventLog, PoolId, Segment
from .module_paths import ModulePaths

NOT_SEEN, FORWARD, FORWARD_WITH_NODE, BACKWARD = range(4)
"""The pass that made a block, in a forward pass by an op that made a node of autograd or by another
one; or it was not seen."""


_FIRST_ACTIONS: Final = ("alloc", "free_completed")
_ALLOC, _FREE_COMPLETED = range(len(_FIRST_ACTIONS))
"""Numbers of these actions in the log of events."""


class LiveBlock(LoggedBlock):
    """A block from its allocation until no recording needs it; its stack may not be known."""

    # No slots: most blocks live and die with the values of the class, and cost half the time.
    forward: TakenStack | None = None
    module = ""
    category = Category.UNKNOWN
    made_in = NOT_SEEN
    call = 0
    end: Any = None  # the stack that freed it: as it was captured, or its number
    event = -1  # number of its allocation among the events of the device
    action = _ALLOC  # or another event, which happened to this memory

    @classmethod
    def of(cls, block: LoggedBlock) -> LiveBlock:
        """A block that was allocated before it is followed."""
        made = cls(block.address, block.size, block.requested, block.stream, block.raw)
        made.is_data, made.number = block.is_data, block.number
        return made


def read_ends(blocks: Iterable[LiveBlock]) -> None:
    """Give a number to the stacks that freed blocks."""
    # Another thread may read them now, so each is looked at once.
    unread = [
        (block, end)
        for block in blocks
        if (end := block.end) is not None and not isinstance(end, int)
    ]
    numbers = call_stacks.numbers_of([end for _, end in unread])
    for (block, _), number in zip(unread, numbers, strict=True):
        block.end = number


_MOST_OPEN: Final = 2 * 4096
"""Open events, each a block and a time, that wait to be written."""


_DROPPED_AT_ONCE: Final = 4
"""A log that is to keep some events drops old ones when there are a quarter more of them."""


class KeptEvents(NamedTuple):
    """The events of a recording, as far as they are kept."""

    events: EventLog
    dropped: int  # how many came before them
    initial: Sequence[Segment] | None  # the segments before them; None if nothing was dropped


class LiveLog:
    """The events of one device since a recording asked for them: 46 bytes for each."""

    # With a number of events to keep (``most``) it drops older ones, and knows the memory at the
    # first one that is left: 54 bytes for each. See Note [Old events].

    def __init__(
        self,
        category_of: Callable[[LiveBlock], Category],
        earlier: int,
        memory: EarlierMemory,
        most: int | None = None,
    ) -> None:
        self.events = EventLog()
        self.earlier = earlier  # how many events of the device are not in here
        # of the events of private pools, by the numbers that events have on the device
        self.pools: dict[int, PoolId] = {}
        self._first = earlier
        self._memory = memory
        self._most = most
        self._nbytes = array("Q")  # of the block of each event, if old events are dropped
        self._category_of = category_of
        # Of an open event there are its block and its time in nanoseconds, negative for a free.
        # Both are added at once, as another thread may add others.
        self.open: list[Any] = []
        self._reading = threading.RLock()
        for action in _FIRST_ACTIONS:
            self.events.number_of(action)

    def keep(self, most: int | None) -> None:
        """Keep so many events for one more recording; None for all from now on."""
        if self._most is not None:
            self._most = None if most is None else max(self._most, most)

    def read_soon(self) -> None:
        """Read the open events if there are many."""
        # The allocator, which tells of a free, never waits for a thread that reads: that one may
        # wait for the allocator.
        if len(self.open) > _MOST_OPEN and self._reading.acquire(blocking=False):
            try:
                self._read()
            finally:
                self._reading.release()

    def happened(self, action: str, address: int, size: int, stream: int) -> None:
        event = LiveBlock(address, size, size, stream)
        event.action = self.events.number_of(action)
        self.open += (event, time_ns())

    def settled(
        self,
        live: Iterable[tuple[LiveBlock, Category]],
        number_of: Callable[[int], int],
        first: int,
    ) -> KeptEvents:
        """All that is known by now of the events from one on, with other numbers for stacks."""
        with self._reading:
            with no_garbage_collection():  # a collection frees blocks in this thread
                self._read()
                for block, category in live:
                    self._set_category(block, category)
                if self._most is not None:
                    self._drop(len(self.events) - self._most)
            earlier, dropped = self.earlier, max(self.earlier - first, 0)
            start = max(first, earlier)
            events = self.events.part(start - earlier, len(self.events))
            initial = self._memory.segments(number_of) if dropped else None
        pools = self.pools.copy()
        events.pools = {number - start: pools[number] for number in pools if number >= start}
        events.stacks = array("i", map(number_of, events.stacks))
        events.forwards = array("i", map(number_of, events.forwards))
        return KeptEvents(events, dropped, initial)

    def _set_category(self, block: LiveBlock, category: Category) -> None:
        if 0 <= block.event - self.earlier < len(self.events):
            self.events.set_category(block.event - self.earlier, category)
        elif self._first <= block.event < self.earlier:
            self._memory.set_category(block.address, category)

    def _drop(self, count: int) -> None:
        """Drop the first events; see Note [Old events]."""
        if count <= 0:
            return
        log, earlier = self.events, self.earlier
        count = end_of_request(log, count)
        pools = self.pools.copy()
        of_log = {number - earlier: pool_id for number, pool_id in pools.items()}
        self._memory.follow(log, self._nbytes, count, of_log)
        self.events, self._nbytes = log.part(count, len(log)), self._nbytes[count:]
        self.earlier = earlier = earlier + count
        for number in pools:
            if number < earlier:
                del self.pools[number]

    def _read(self) -> None:
        # Another thread may add events now: they are read next time.
        open_ = self.open[:]
        del self.open[: len(open_)]
        blocks, times = open_[::2], open_[1::2]
        ended = [block for block, time in zip(blocks, times, strict=True) if time < 0]
        number_of, module_number = call_stacks.number_of, self.events.module_names.number_of
        call_stacks.read()
        made = [block if time > 0 else _FREED for block, time in zip(blocks, times, strict=True)]
        forwards = [block.forward for block in made]
        self.events.extend(
            actions=[block.action for block in made],
            addresses=[block.address for block in blocks],
            sizes=[block.requested for block in blocks],
            streams=[block.stream for block in blocks],
            times=[abs(time) // 1000 for time in times],
            stacks=[block.number if block.raw is None else number_of(block) for block in made],
            forwards=[0 if stack is None else number_of(stack) for stack in forwards],
            modules=[module_number(block.module) if block.module else 0 for block in made],
            categories=[Category.UNKNOWN.number] * len(made),
        )
        read_ends(ended)
        earlier, categories, category_of = self.earlier, self.events.categories, self._category_of
        for block in ended:
            if block.event >= earlier:
                categories[block.event - earlier] = category_of(block).number
            elif block.event >= self._first:
                self._memory.set_category(block.address, category_of(block))
        most = self._most
        if most is not None:
            self._nbytes.extend([block.size for block in blocks])
            if len(self.events) > most + most // _DROPPED_AT_ONCE:
                with no_garbage_collection():
                    self._drop(len(self.events) - most)


# Note [Old events]
#
# A log that keeps the last N events drops a part of N at once, so that an event costs the same
# whatever N is. The memory before the first event that is left follows from the memory at the
# beginning and the events that are dropped: blocks keep their stacks, modules and categories, also
# those categories that are known only when a block is freed much later. A request of an allocator
# is several events (cached segments go back, a segment comes, a block is taken from it); they are
# dropped together, so that a replay of the rest begins between two requests.


_FREED: Final = LiveBlock(0, 0, 0)
"""Stands for the block of a free where an allocation has a stack."""
_FREED.action = _FREE_COMPLETED

_current_node: Callable[[], Any] = torch._C._current_autograd_node
_is_grad_enabled = torch.is_grad_enabled
_UNKNOWN = Category.UNKNOWN  # a member of an enum takes longer to find than a global


@dataclass(slots=True)
class ProgramState:
    """The state of the program at the moment of an event."""

    forward_ops: ForwardOps
    modules: ModulePaths
    is_on: bool = False


Moment = tuple[list[LiveBlock], int, int, int]
"""The blocks in use by address, active and reserved bytes, and the index of the event before."""

Locked = Callable[[Callable[[], Moment]], Moment]
"""Calls a function while no other thread changes the blocks."""


class PeakBlocks:
    """The blocks in use when the active bytes of a device were highest while this was on."""

    # They are those in use now, without those made since, and with those freed since. So this is as
    # large as the blocks at the peak and the blocks now, however many events there were.

    __slots__ = (
        *("_live", "died", "event", "first", "highest", "initial", "is_on", "private", "reserved"),
    )

    def __init__(self, live: LiveBlocks, initial: Sequence[Segment] = ()) -> None:
        self._live = live
        self.first = live.events  # number of the first event that counts
        self.initial = tuple(initial)  # the segments before it
        self.died: list[LiveBlock] = []
        self.is_on = False
        self.highest = -1
        self.reserved = 0
        self.private = NO_PRIVATE_MEMORY
        self.event = -1

    def set_peak(self, active: int, event: int) -> None:
        self.highest, self.event = active, event
        self.reserved, self.private = self._live.reserved(), self._live.private()
        if self.died:
            self.died.clear()

    def moment(self) -> Moment:
        return self._live.locked(self._moment)

    def _moment(self) -> Moment:
        still_live = [block for block in self._live.blocks() if block.event <= self.event]
        blocks = sorted((*still_live, *self.died), key=lambda block: block.address)
        return blocks, self.highest, self.reserved, self.event


class LiveBlocks:
    """The blocks in use on one device, followed from event to event."""

    def __init__(
        self,
        state: ProgramState,
        reserved: Callable[[], int],
        in_use: Mapping[int, LiveBlock],
        waiting: Mapping[int, LiveBlock],
        locked: Locked = lambda work: work(),
        private: Callable[[], PrivateMemory] = lambda: NO_PRIVATE_MEMORY,
    ) -> None:
        self.state = state
        self.reserved = reserved
        self.private = private
        self.in_use = in_use
        self._waiting = waiting
        self.locked = locked
        self.active = sum(block.size for block in self.blocks())
        self.events = 0
        self.peaks: tuple[PeakBlocks, ...] = ()
        self.log: LiveLog | None = None

    def blocks(self) -> list[LiveBlock]:
        """The blocks in use, by the program or by a stream."""
        return [*self.in_use.values(), *self._waiting.values()]

    def block_at(self, address: int) -> LiveBlock | None:
        return self.in_use.get(address) or self._waiting.get(address)

    def begin_peak(self, peak: PeakBlocks) -> None:
        """Let a peak count what happens from now on, beginning with what is in use."""
        if peak not in self.peaks:
            self.peaks = (*self.peaks, peak)
        peak.is_on = True
        if self.active > peak.highest:
            peak.set_peak(self.active, self.events - 1)

    def drop_peak(self, peak: PeakBlocks) -> None:
        self.peaks = tuple(other for other in self.peaks if other is not peak)

    def allocated(self, block: LiveBlock) -> None:
        # This runs at every allocation: what it saves in calls, the program gains.
        state = self.state
        if state.is_on:
            thread = state.modules.thread.calls
            if thread.running:
                block.module = thread.running[-1][1]
                block.call = thread.number
            node = _current_node()
            if node is not None:
                stack = state.forward_ops.of_node(node)
                if stack is not None:
                    block.forward = stack
                    stack.is_kept = True
                    block.module = block.module or stack.module
            if _is_grad_enabled():
                block.made_in = FORWARD_WITH_NODE if state.forward_ops.makes_node() else FORWARD
            else:
                block.made_in = FORWARD if node is None else BACKWARD
        event = self.events
        events, active = event + 1, self.active + block.size
        block.event = event
        if self.log is not None:
            self.log.open += (block, time_ns())
        self.events, self.active = events, active
        for peak in self.peaks:
            if active > peak.highest and peak.is_on:
                peak.set_peak(active, event)

    def freed(self, block: LiveBlock, *, has_waited: bool = False) -> None:
        """A block is free again: the program gives it back in this thread, if it has not waited."""
        log = self.log
        is_wanted = log is not None
        for peak in self.peaks:
            if block.event <= peak.event:
                peak.died.append(block)
                is_wanted = True
        if is_wanted and has_waited:
            block.is_kept = True
        elif is_wanted:
            self.free_requested(block)
        events, active = self.events + 1, self.active - block.size
        if log is not None:
            log.open += (block, -time_ns())
        self.events, self.active = events, active
        if log is not None:
            log.read_soon()
        elif not is_wanted and has_waited:
            block.is_kept = False
            block.drop()

    def free_requested(self, block: LiveBlock) -> None:
        """The program gives a block back in this thread, which a stream may still use."""
        # Its category follows from that. See Note [Categories of freed blocks].
        block.is_kept = True
        state = self.state
        if not state.is_on or block.category is not _UNKNOWN or not block.is_data:
            return
        if _current_node() is not None and not _is_grad_enabled():
            if block.made_in == BACKWARD:
                block.category = Category.TEMPORARIES
            elif block.made_in != NOT_SEEN:
                block.category = Category.SAVED
        elif block.call and block.call == state.modules.thread.calls.number:
            block.category = Category.TEMPORARIES
        else:
            block.end = capture()

    def completed(self, block: LiveBlock) -> None:
        """A block that a stream still used is free again."""
        self.freed(block, has_waited=True)

    def happened(
        self, action: str, address: int, size: int, stream: int, pool_id: PoolId | None
    ) -> None:
        events = self.events + 1
        if self.log is not None:
            self.log.happened(action, address, size, stream)
            if pool_id is not None:
                self.log.pools[self.events] = pool_id
        self.events = events

    def settle(self) -> None:
        """Count the blocks again, after an error in one of these."""
        self.active = active = sum(block.size for block in self.blocks())
        for peak in self.peaks:
            if active > peak.highest and peak.is_on:
                peak.set_peak(active, self.events - 1)


# Note [Categories of freed blocks]
#
# Parameters, buffers, gradients and optimizer state are recognised while they live. For another
# block, its category follows from the moment at which it is freed:
#
# - The backward pass frees what the forward pass made: autograd had saved it. Checkpointing makes
#   it in the backward pass, with gradients on, and it counts as well, as does what the ``forward``
#   of a custom function made, with gradients off. What the backward pass made itself and frees
#   again is temporary. What ``backward()`` made and left behind is a gradient.
# - What is made in a module and freed before the outermost module returns is temporary. What an op
#   with a node of autograd made there and what lives longer is kept by the graph, or it is a
#   result: it counts as saved.
# - What is made outside of modules is temporary if it is freed while the line of the program that
#   made it still runs, or the line that called that function: the stack of the free is then the
#   stack of the allocation, or its outer part.
#
# Memory that a kernel allocates for itself is no storage of a tensor, so it has no data.
