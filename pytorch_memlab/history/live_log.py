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
        self._open = array("q")
        self._unread: list[LiveBlock] = []
        self._ended: list[LiveBlock] = []
        numbers = self.events.number_of
        self._alloc, self._free_completed = numbers("alloc"), numbers("free_completed")

    # Open events are plain numbers: as tuples they would take four times the memory and the time to
    # be written.

    def allocated(self, block: LiveBlock) -> None:
        """A block was allocated."""
        module = self.events.module_number(block.module) if block.module else 0
        now = time_ns() // 1000
        numbers = _pack(self._alloc, block.address, block.requested, block.stream, now, module)
        self._open.frombytes(numbers)
        self._unread.append(block)

    def freed(self, block: LiveBlock) -> None:
        """A block is free again."""
        now = time_ns() // 1000
        kind = self._free_completed
        self._open.frombytes(_pack(kind, block.address, block.requested, block.stream, now, 0))
        if block.event >= self.earlier:
            self._ended.append(block)
        if len(self._open) > _MOST_OPEN:
            self._read()

    def happened(self, action: str, address: int, size: int, stream: int) -> None:
        """Another event: of a segment, or out of memory."""
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
    """Empty a list and return its items."""
    found = waiting[:]
    del waiting[: len(found)]
    return found
