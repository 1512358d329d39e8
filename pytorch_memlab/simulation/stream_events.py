"""Blocks that other streams still use after the program has freed them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .blocks import Block


class StreamEvents:
    """One event for each stream that uses a freed block, as ``record_stream`` told.

    A simulated stream has finished its work at once, so its events are complete when they are
    recorded; the allocator notices at its next allocation. A stream that is held has not finished:
    its events complete when it is synchronized.
    """

    def __init__(self) -> None:
        self._held: set[int] = set()
        self._waiting: dict[int, list[Block]] = {}
        self._complete: list[Block] = []

    @property
    def any_complete(self) -> bool:
        """Whether an event has completed that nobody has taken notice of."""
        return bool(self._complete)

    def hold(self, stream: int) -> None:
        """Let work on `stream` be unfinished from now on."""
        self._held.add(stream)

    def synchronize(self, stream: int | None = None) -> None:
        """Let the work of `stream`, or of all streams, be finished."""
        if stream is None:
            self._held.clear()
            self.complete_all()
        else:
            self._held.discard(stream)
            self._complete += self._waiting.pop(stream, ())

    def complete_all(self) -> None:
        """Wait for every event that was recorded; streams that are held stay so."""
        for blocks in self._waiting.values():
            self._complete += blocks
        self._waiting.clear()

    def record(self, block: Block) -> None:
        """Record an event on every stream that uses a freed block."""
        for stream in block.stream_uses or ():
            block.event_count += 1
            if stream in self._held:
                self._waiting.setdefault(stream, []).append(block)
            else:
                self._complete.append(block)
        block.stream_uses = None

    def finished_blocks(self) -> Iterator[Block]:
        """Take notice of the complete events, one by one, and yield each block after its last.

        A block must be freed before the next one is asked for: until then that one is in use, so
        that the two are not joined too early.
        """
        complete, self._complete = self._complete, []
        for block in complete:
            block.event_count -= 1
            if not block.event_count:
                yield block

    def pending_blocks(self) -> list[Block]:
        """Return the freed blocks that wait for an event."""
        waiting = [block for blocks in self._waiting.values() for block in blocks]
        return list({id(block): block for block in (*self._complete, *waiting)}.values())
