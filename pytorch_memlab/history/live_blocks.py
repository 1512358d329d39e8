"""The blocks in use on one device, and those that were in use at its peak."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .._common.call_stacks import TakenStack, capture
from .category import Category
from .live_block import (
    BACKWARD,
    FORWARD,
    FORWARD_WITH_NODE,
    FORWARD_WITHOUT_GRAD,
    LiveBlock,
)

if TYPE_CHECKING:
    from .._common.call_stacks import CallStacks
    from .._common.forward_ops import ForwardOps
    from .live_log import LiveLog
    from .module_paths import ModulePaths

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
        """There are more active bytes than before."""
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
        """The block in use at an address."""
        return self.in_use.get(address) or self._waiting.get(address)

    def begin_peak(self, peak: PeakBlocks) -> None:
        """Let a peak count what happens from now on, beginning with what is in use."""
        if peak not in self.peaks:
            self.peaks = (*self.peaks, peak)
        peak.is_on = True
        if self.active > peak.highest:
            peak.set_peak(self.active, self.reserved(), self.events - 1)

    def drop_peak(self, peak: PeakBlocks) -> None:
        """Stop to follow a peak."""
        self.peaks = tuple(one for one in self.peaks if one is not peak)

    def allocated(self, block: LiveBlock) -> None:
        """A block was allocated by this thread."""
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
        """Another event: of a segment, or out of memory."""
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
