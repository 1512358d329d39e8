"""All events of one device, written down in columns as they happen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from .category import Category
from .event_log import EventLog
from .model import Segment

if TYPE_CHECKING:
    from .._common.call_stacks import CallStacks
    from .live_blocks import LiveBlock

_MOST_OPEN: Final = 4096
"""Allocations whose stacks, and freed blocks whose categories, wait to be read together."""


class LiveLog:
    """The events of one device since somebody wanted them: 46 bytes for each.

    Args:
        number_of: gives the number, in the history, of the stack of a block's allocation.
        forwards: where the stacks of forward ops are taken, whose numbers are the history's.
        initial: segments at the beginning, with their blocks.
        category_of: tells the category of a block that was freed.
        earlier: events of the device before the first one here.
    """

    def __init__(
        self,
        number_of: Callable[[LiveBlock], int],
        forwards: CallStacks,
        initial: Sequence[Segment],
        category_of: Callable[[LiveBlock], Category],
        earlier: int,
    ) -> None:
        self.events = EventLog()
        self.initial = tuple(initial)
        self.earlier = earlier
        self._number_of = number_of
        self._forwards = forwards
        self._category_of = category_of
        self._unread: list[LiveBlock] = []
        self._ended: list[LiveBlock] = []

    def allocated(self, block: LiveBlock, stream: int) -> None:
        """A block was allocated."""
        block.number = len(self.events)
        self._append("alloc", block.address, block.requested, stream, block.module)
        self._unread.append(block)

    def freed(self, block: LiveBlock, stream: int) -> None:
        """A block is free again."""
        self._append("free_completed", block.address, block.requested, stream)
        if block.number >= 0:
            self._ended.append(block)
            if len(self._unread) + len(self._ended) > _MOST_OPEN:
                self._read()

    def happened(self, action: str, address: int, size: int, stream: int) -> None:
        """Another event: of a segment, or out of memory."""
        self._append(action, address, size, stream)

    def settle(self, living: Iterable[tuple[LiveBlock, Category]]) -> EventLog:
        """The events so far, with all that is known of them by now.

        Args:
            living: the blocks in use with their categories.
        """
        self._read()
        for block, category in living:
            if block.number >= 0:
                self.events.set_category(block.number, category)
        return self.events

    def _append(self, action: str, address: int, size: int, stream: int, module: str = "") -> None:
        now = time.time_ns() // 1000
        self.events.append(action, address, size, stream, now, 0, module=module)

    def _read(self) -> None:
        unread, self._unread = self._unread, []
        ended, self._ended = self._ended, []
        for block in unread:
            self.events.stacks[block.number] = self._number_of(block)
            if block.forward is not None:
                self.events.forwards[block.number] = self._forwards.number_of(block.forward)
        for block in ended:
            self.events.set_category(block.number, self._category_of(block))
