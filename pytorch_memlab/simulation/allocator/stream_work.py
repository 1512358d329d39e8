"""Unfinished work on streams, and the freed blocks that wait for it.

Simulated work is done at once. Only ``torch.cuda._sleep`` takes time: its stream is busy until the
program synchronizes with it, whatever the clock says, so that a program that tests for delayed
reuse of memory finds the same on every machine. Only a query looks at the clock, so that a program
that polls comes to an end.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator

from .blocks import Block, PrivatePool


class Work:
    """A piece of work on a stream, which is finished once the stream has done it."""

    __slots__ = ("_after", "_is_sleep", "before", "end_time", "is_finished")

    def __init__(self, before: list[Work], end_time: float, *, is_sleep: bool) -> None:
        self.before = before
        self._after: list[Work] = []
        self._is_sleep = is_sleep
        self.end_time = end_time
        self.is_finished = False
        for earlier in before:
            earlier._after.append(self)

    def finish(self) -> None:
        """Let it be done, with all that comes before it."""
        done: dict[Work, None] = {}
        ready = [self]
        while ready:
            work = ready.pop()
            if work.is_finished or work in done:
                continue
            done[work] = None
            ready += work.before
            ready += [waiting for waiting in work._after if waiting._only_waited(done)]
        for work in done:
            work.is_finished = True
            work.before.clear()
            work._after.clear()

    def _only_waited(self, done: Container[Work]) -> bool:
        return not self._is_sleep and all(
            earlier.is_finished or earlier in done for earlier in self.before
        )


class StreamWork:
    """The last unfinished work of each stream of one GPU."""

    def __init__(self) -> None:
        self._last: dict[int, Work] = {}

    def last(self, stream: int) -> Work | None:
        """The last work of `stream`, None if all is done."""
        work = self._last.get(stream)
        if work is not None and work.is_finished:
            del self._last[stream]
            return None
        return work

    def sleep(self, stream: int, start: float = math.inf, seconds: float = 0.0) -> None:
        previous = self.last(stream)
        begin = start if previous is None else max(start, previous.end_time)
        before = [] if previous is None else [previous]
        self._last[stream] = Work(before, begin + seconds, is_sleep=True)

    def wait(self, stream: int, work: Work) -> None:
        """Let `stream` do nothing more until `work` of another one is done."""
        previous = self.last(stream)
        if work.is_finished or work is previous:
            return
        if previous is None:
            self._last[stream] = Work([work], work.end_time, is_sleep=False)
        elif work not in previous.before:
            end_time = max(work.end_time, previous.end_time)
            self._last[stream] = Work([previous, work], end_time, is_sleep=False)

    def finish(self, stream: int | None = None) -> None:
        """Let all the work of `stream`, or of all streams, be done."""
        streams = list(self._last) if stream is None else [stream]
        for finished in streams:
            work = self._last.get(finished)
            if work is not None:
                work.finish()
                del self._last[finished]


class StreamEvents:
    """The events of freed blocks: one for each stream that ``record_stream`` named."""

    # A simulated stream has finished its work at once, so its events are complete when they are
    # recorded; the allocator notices at its next allocation. The events of a stream with unfinished
    # work complete when that is done.

    def __init__(self) -> None:
        self.work = StreamWork()
        # Events that may have completed and were not processed yet, and blocks without them.
        self.waiting: list[tuple[Work, Block]] = []
        self.complete: list[Block] = []
        self.deferred: list[Block] = []
        """Blocks freed in a capture, in which no event can be recorded: they wait for its end."""

    def wait_for_all(self, pool: PrivatePool | None = None) -> None:
        """Wait for the events of all blocks, or of those of a private pool."""
        for work, block in self.waiting:
            if pool in (None, block.pool.private):
                work.finish()

    def recorded(
        self, block: Block, uses: Collection[int]
    ) -> tuple[list[Block], list[tuple[Work, Block]], int]:
        """`complete`, `waiting` and a block's event count with an event on each stream."""
        complete, waiting = self.complete.copy(), self.waiting.copy()
        for stream in uses:
            work = self.work.last(stream)
            if work is None:
                complete.append(block)
            else:
                waiting.append((work, block))
        return complete, waiting, len(uses)

    def deferred_without_use(self) -> Iterator[Block]:
        """Record the events of blocks that waited for a capture; yield those without any."""
        # What a stream did in the capture is done only when the graph runs. As with
        # `finished_blocks`, each must be freed before the next one is asked for.
        while self.deferred:
            block, *deferred = self.deferred
            uses = (block.stream_uses or set()) - (block.capture_uses or set())
            complete, waiting, count = self.recorded(block, uses)
            self.complete, self.waiting, self.deferred = complete, waiting, deferred
            block.event_count = count
            block.stream_uses = block.capture_uses = None
            if not count:
                yield block

    def finished_blocks(self) -> Iterator[Block]:
        """Take notice of the complete events, one by one, and yield each block after its last."""
        # A block must be freed before the next one is asked for: until then that one is in use, so
        # that the two are not joined too early.
        if self.waiting:
            finished = [block for work, block in self.waiting if work.is_finished]
            waiting = [pair for pair in self.waiting if not pair[0].is_finished]
            self.complete, self.waiting = self.complete + finished, waiting
        while self.complete:
            block = self.complete[0]
            count = block.event_count - 1
            del self.complete[0]
            block.event_count = count
            if not count:
                yield block

    def pending_blocks(self) -> list[Block]:
        """Return the freed blocks that wait for an event."""
        pending = (*self._recorded_blocks(), *self.deferred)
        return list({id(block): block for block in pending}.values())

    def recount(self, blocks: Iterable[Block]) -> None:
        """Count the events of blocks again."""
        counts = Counter(map(id, self._recorded_blocks()))
        for block in blocks:
            block.event_count = counts[id(block)]

    def _recorded_blocks(self) -> list[Block]:
        """The block of each event."""
        return self.complete + [block for _, block in self.waiting]
