"""The blocks in use on one device, those that were in use at its peak, and the log of events."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from time import time_ns
from typing import TYPE_CHECKING, Any, Final, TypeVar

import torch

from .._common.call_stacks import TakenStack, capture
from ..simulation.inspect import LoggedBlock
from .category import Category
from .event_log import EventLog
from .model import Segment

if TYPE_CHECKING:
    from .._common.call_stacks import CallStacks
    from .._common.forward_ops import ForwardOps
    from .module_paths import ModulePaths

NOT_SEEN: Final = 0
FORWARD: Final = 1
FORWARD_WITH_NODE: Final = 2
FORWARD_WITHOUT_GRAD: Final = 3
BACKWARD: Final = 4
"""The pass that made a block: with gradients on, by an op that made a node of autograd or by
another; with gradients off; in a backward pass; or it was not seen."""


class LiveBlock(LoggedBlock):
    """A block from its allocation until no recording needs it; its stack may not be known."""

    # No slots: most blocks live and die with the values of the class, and cost half the time.
    forward: TakenStack | None = None
    module = ""
    category = Category.UNKNOWN
    made_in = NOT_SEEN
    call = 0
    end: TakenStack | None = None
    event = -1  # number of its allocation among the events of the device

    @classmethod
    def of(cls, block: LoggedBlock) -> LiveBlock:
        """A block that was allocated before it is followed."""
        made = cls(block.address, block.size, block.requested, block.stream, block.order, block.raw)
        made.is_data, made.number = block.is_data, block.number
        return made


T = TypeVar("T")

_pack: Final = Struct("=6q").pack  # a third of the time of array.extend

_MOST_OPEN: Final = 6 * 4096
"""Numbers of events that wait to be written, with the stacks and categories of their blocks."""


class LiveLog:
    """The events of one device since a recording asked for them: 46 bytes for each."""

    def __init__(
        self,
        number_of: Callable[[LiveBlock], int],
        stacks: CallStacks,
        forwards: CallStacks,
        initial: Sequence[Segment],
        category_of: Callable[[LiveBlock], Category],
        earlier: int,
    ) -> None:
        self.events = EventLog()
        self.initial = tuple(initial)
        self.earlier = earlier
        self._number_of = number_of
        self._stacks = stacks
        self._forwards = forwards
        self._category_of = category_of
        self._open = array("q")
        self._unread: list[LiveBlock] = []
        self._ended: list[LiveBlock] = []
        numbers = self.events.number_of
        self._alloc, self._free_completed = numbers("alloc"), numbers("free_completed")

    # Open events are plain numbers: as tuples they would take four times the memory and the time to
    # be written.

    def allocated(self, block: LiveBlock) -> None:
        module = self.events.module_number(block.module) if block.module else 0
        now = time_ns() // 1000
        numbers = _pack(self._alloc, block.address, block.requested, block.stream, now, module)
        self._open.frombytes(numbers)
        self._unread.append(block)

    def freed(self, block: LiveBlock) -> None:
        now = time_ns() // 1000
        kind = self._free_completed
        self._open.frombytes(_pack(kind, block.address, block.requested, block.stream, now, 0))
        if block.event >= self.earlier:
            self._ended.append(block)
        if len(self._open) > _MOST_OPEN:
            self._read()

    def happened(self, action: str, address: int, size: int, stream: int) -> None:
        number = self.events.number_of(action)
        self._open.frombytes(_pack(number, address, size, stream, time_ns() // 1000, 0))

    def settle(self, live: Iterable[tuple[LiveBlock, Category]]) -> EventLog:
        """The events so far, with all that is known of them by now."""
        self._read()
        for block, category in live:
            if block.event >= self.earlier:
                self.events.set_category(block.event - self.earlier, category)
        return self.events

    def _read(self) -> None:
        # Another thread may add events now: their blocks are read next time.
        ended, unread = _taken(self._ended), _taken(self._unread)
        open_ = self._open[:]
        del self._open[: len(open_)]
        self.events.extend(open_)
        for block in unread:
            index = block.event - self.earlier
            self.events.stacks[index] = self._number_of(block)
            if block.forward is not None:
                self.events.forwards[index] = self._forwards.number_of(block.forward)
        self._stacks.read(block.end for block in ended if block.end is not None)
        for block in ended:
            self.events.set_category(block.event - self.earlier, self._category_of(block))


def _taken(waiting: list[T]) -> list[T]:
    found = waiting[:]
    del waiting[: len(found)]
    return found


_current_node: Callable[[], Any] = torch._C._current_autograd_node
_is_grad_enabled = torch.is_grad_enabled
_UNKNOWN = Category.UNKNOWN  # a member of an enum takes longer to find than a global


@dataclass(slots=True)
class ProgramState:
    """The state of the program at the moment of an event."""

    stacks: CallStacks
    forward_ops: ForwardOps[tuple[TakenStack, str]]
    modules: ModulePaths
    is_on: bool = False


class PeakBlocks:
    """The blocks in use when the active bytes of a device were highest while this was on.

    They are those in use now, without those made since, and with those freed since. So this is as
    large as the blocks at the peak and the blocks now, however many events there were.
    """

    __slots__ = ("_live", "died", "event", "highest", "is_on", "reserved")

    def __init__(self, live: LiveBlocks) -> None:
        self._live = live
        self.died: list[LiveBlock] = []
        self.is_on = False
        self.highest = -1
        self.reserved = 0
        self.event = -1

    def set_peak(self, active: int, reserved: int, event: int) -> None:
        self.highest, self.reserved, self.event = active, reserved, event
        if self.died:
            self.died.clear()

    def at_peak(self) -> list[LiveBlock]:
        """The blocks in use then, by address."""
        found = [block for block in self._live.blocks() if block.event <= self.event]
        return sorted((*found, *self.died), key=lambda block: block.address)


class LiveBlocks:
    """The blocks in use on one device, followed from event to event."""

    def __init__(
        self,
        state: ProgramState,
        reserved: Callable[[], int],
        stacks: CallStacks,
        in_use: Mapping[int, LiveBlock],
        waiting: Mapping[int, LiveBlock],
    ) -> None:
        self.state = state
        self.reserved = reserved
        self.stacks = stacks
        self.in_use = in_use
        self._waiting = waiting
        self.active = sum(block.size for block in self.blocks())
        self.events = 0
        self.peaks: tuple[PeakBlocks, ...] = ()
        self.log: LiveLog | None = None
        self.adopted: dict[int, int] = {}

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
            peak.set_peak(self.active, self.reserved(), self.events - 1)

    def drop_peak(self, peak: PeakBlocks) -> None:
        self.peaks = tuple(one for one in self.peaks if one is not peak)

    def allocated(self, block: LiveBlock) -> None:
        # This runs at every allocation: what it saves in calls, the program gains.
        state = self.state
        if state.is_on:
            thread = state.modules.thread.calls
            if thread.running:
                block.module = thread.running[-1][1]
                block.call = thread.number
            if _current_node() is not None:
                self._describe_backward(block, state)
            elif not _is_grad_enabled():
                block.made_in = FORWARD_WITHOUT_GRAD
            else:
                block.made_in = FORWARD_WITH_NODE if state.forward_ops.makes_node() else FORWARD
        block.event = event = self.events
        self.events = event + 1
        self.active = active = self.active + block.size
        if self.log is not None:
            self.log.allocated(block)
        for peak in self.peaks:
            if active > peak.highest and peak.is_on:
                peak.set_peak(active, self.reserved(), event)

    def freed(self, block: LiveBlock, *, has_waited: bool = False) -> None:
        """A block is free again: the program gives it back in this thread, if it has not waited."""
        is_wanted = self.log is not None
        for peak in self.peaks:
            if block.event <= peak.event:
                peak.died.append(block)
                is_wanted = True
        if is_wanted:
            block.is_kept = True
            if block.category is _UNKNOWN and block.is_data and not has_waited:
                self._see_end(block)
        self.events += 1
        self.active -= block.size
        if self.log is not None:
            self.log.freed(block)
        elif not is_wanted and has_waited:
            block.is_kept = False
            block.drop()

    def free_requested(self, block: LiveBlock) -> None:
        """The program gives a block back in this thread, which a stream still uses."""
        block.is_kept = True
        if block.category is _UNKNOWN and block.is_data:
            self._see_end(block)

    def completed(self, block: LiveBlock) -> None:
        """A block that a stream still used is free again."""
        self.freed(block, has_waited=True)

    def happened(self, action: str, address: int, size: int, stream: int) -> None:
        self.events += 1
        if self.log is not None:
            self.log.happened(action, address, size, stream)

    def _describe_backward(self, block: LiveBlock, state: ProgramState) -> None:
        note = state.forward_ops.of_current_node()
        if note is not None:
            block.forward = stack = note[0]
            stack.is_kept = True
            block.module = block.module or note[1]
        if not _is_grad_enabled():
            block.made_in = BACKWARD
        else:
            block.made_in = FORWARD_WITH_NODE if state.forward_ops.makes_node() else FORWARD

    def _see_end(self, block: LiveBlock) -> None:
        """The category of a block by its free. See Note [Categories of freed blocks]."""
        state = self.state
        if not state.is_on:
            return
        if _current_node() is not None and not _is_grad_enabled():
            if block.made_in in (FORWARD, FORWARD_WITH_NODE):
                block.category = Category.SAVED
            elif block.made_in == BACKWARD:
                block.category = Category.TEMPORARIES
        elif block.call and block.call == state.modules.thread.calls.number:
            block.category = Category.TEMPORARIES
        else:
            block.end = TakenStack(capture())


# Note [Categories of freed blocks]
#
# Parameters, buffers, gradients and optimizer state are recognised while they live. For another
# block, its category follows from the moment at which it is freed:
#
# - The backward pass frees what the forward pass made: autograd had saved it. Checkpointing makes
#   it in the backward pass, with gradients on, and it counts as well. What the backward pass made
#   itself and frees again is temporary.
# - What is made in a module and freed before the outermost module returns is temporary. What an op
#   with a node of autograd made there and what lives longer is kept by the graph, or it is a
#   result: it counts as saved.
# - What is made outside of modules is temporary if it is freed while the line of the program that
#   made it still runs, or the line that called that function: the stack of the free is then the
#   stack of the allocation, or its outer part.
#
# Memory that a kernel allocates for itself is no storage of a tensor, so it has no data.
