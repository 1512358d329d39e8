"""All events of one device, written down in columns as they happen."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from struct import Struct
from time import time_ns
from typing import TYPE_CHECKING, Final, TypeVar

from .category import Category
from .event_log import EventLog
from .model import Segment

if TYPE_CHECKING:
    from .._common.call_stacks import CallStacks
    from .live_block import LiveBlock

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
        self._count = 0
        self._open = array("q")
        self._unread: list[LiveBlock] = []
        self._ended: list[LiveBlock] = []
        numbers = self.events.number_of
        self._alloc, self._free_completed = numbers("alloc"), numbers("free_completed")

    # Open events are plain numbers: as tuples they would take four times the memory and the time to
    # be written.

    def allocated(self, block: LiveBlock, stream: int) -> None:
        """A block was allocated."""
        module = self.events.module_number(block.module) if block.module else 0
        now = time_ns() // 1000
        numbers = _pack(self._alloc, block.address, block.requested, stream, now, module)
        self._open.frombytes(numbers)
        block.number = self._count
        self._count += 1
        self._unread.append(block)

    def freed(self, block: LiveBlock, stream: int) -> None:
        """A block is free again."""
        now = time_ns() // 1000
        numbers = _pack(self._free_completed, block.address, block.requested, stream, now, 0)
        self._open.frombytes(numbers)
        self._count += 1
        if block.number >= 0:
            self._ended.append(block)
        if len(self._open) > _MOST_OPEN:
            self._read()

    def happened(self, action: str, address: int, size: int, stream: int) -> None:
        """Another event: of a segment, or out of memory."""
        number = self.events.number_of(action)
        self._open.frombytes(_pack(number, address, size, stream, time_ns() // 1000, 0))
        self._count += 1

    def settle(self, live: Iterable[tuple[LiveBlock, Category]]) -> EventLog:
        """The events so far, with all that is known of them by now."""
        self._read()
        for block, category in live:
            if block.number >= 0:
                self.events.set_category(block.number, category)
        return self.events

    def _read(self) -> None:
        # Another thread may add events now: their blocks are read next time.
        ended, unread = _taken(self._ended), _taken(self._unread)
        open_ = self._open[:]
        del self._open[: len(open_)]
        self.events.extend(open_)
        for block in unread:
            self.events.stacks[block.number] = self._number_of(block)
            if block.forward is not None:
                self.events.forwards[block.number] = self._forwards.number_of(block.forward)
        self._stacks.read(block.end for block in ended if block.end is not None)
        for block in ended:
            self.events.set_category(block.number, self._category_of(block))


def _taken(waiting: list[T]) -> list[T]:
    """Empty a list and return its items."""
    found = waiting[:]
    del waiting[: len(found)]
    return found
