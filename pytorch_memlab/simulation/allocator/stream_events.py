"""Blocks that other streams still use after the program has freed them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .stream_work import StreamWork

if TYPE_CHECKING:
    from .blocks import Block
    from .stream_work import Work


class StreamEvents:
    """One event for each stream that uses a freed block, as ``record_stream`` told.

    A simulated stream has finished its work at once, so its events are complete when they are
    recorded; the allocator notices at its next allocation. The events of a stream with unfinished
    work complete when that is done.
    """

    def __init__(self) -> None:
        self.work = StreamWork()
        self._waiting: list[tuple[Work, Block]] = []
        self._complete: list[Block] = []

    @property
    def any_recorded(self) -> bool:
        """True if an event may have completed that was not processed yet."""
        return bool(self._complete or self._waiting)

    def wait_for_all(self) -> None:
        """Wait for every event that was recorded."""
        for work, _ in self._waiting:
            work.finish()

    def record(self, block: Block) -> None:
        """Record an event on every stream that uses a freed block."""
        for stream in block.stream_uses or ():
            block.event_count += 1
            work = self.work.last(stream)
            if work is None:
                self._complete.append(block)
            else:
                self._waiting.append((work, block))
        block.stream_uses = None

    def finished_blocks(self) -> Iterator[Block]:
        """Take notice of the complete events, one by one, and yield each block after its last.

        A block must be freed before the next one is asked for: until then that one is in use, so
        that the two are not joined too early.
        """
        complete, self._complete = self._complete, []
        if self._waiting:
            complete += [block for work, block in self._waiting if work.is_finished]
            self._waiting = [pair for pair in self._waiting if not pair[0].is_finished]
        for block in complete:
            block.event_count -= 1
            if not block.event_count:
                yield block

    def pending_blocks(self) -> list[Block]:
        """Return the freed blocks that wait for an event."""
        waiting = [block for _, block in self._waiting]
        return list({id(block): block for block in (*self._complete, *waiting)}.values())
