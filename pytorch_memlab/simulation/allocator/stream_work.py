"""Unfinished work on streams, and the freed blocks that wait for it.

Simulated work is done at once. Only ``torch.cuda._sleep`` takes time: its stream is busy until the
program synchronizes with it, whatever the clock says, so that a program that tests for delayed
reuse of memory finds the same on every machine. Only a query looks at the clock, so that a program
that polls comes to an end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

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
        for one in before:
            one._after.append(self)

    def finish(self) -> None:
        """Let it be done, with all that comes before it."""
        ready = [self]
        while ready:
            work = ready.pop()
            if work.is_finished:
                continue
            work.is_finished = True
            ready += work.before
            ready += [one for one in work._after if one._only_waited()]
            work.before, work._after = [], []

    def _only_waited(self) -> bool:
        return not self._is_sleep and all(one.is_finished for one in self.before)


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
        for one in streams:
            work = self._last.pop(one, None)
            if work is not None:
                work.finish()


class StreamEvents:
    """The events of freed blocks: one for each stream that ``record_stream`` named.

    A simulated stream has finished its work at once, so its events are complete when they are
    recorded; the allocator notices at its next allocation. The events of a stream with unfinished
    work complete when that is done.
    """

    def __init__(self) -> None:
        self.work = StreamWork()
        self._waiting: list[tuple[Work, Block]] = []
        self._complete: list[Block] = []
        self._deferred: list[Block] = []

    @property
    def any_recorded(self) -> bool:
        """True if an event may have completed that was not processed yet, or was deferred."""
        return bool(self._complete or self._waiting or self._deferred)

    def wait_for_all(self, pool: PrivatePool | None = None) -> None:
        """Wait for the events of all blocks, or of those of a private pool."""
        for work, block in self._waiting:
            if pool in (None, block.pool.private):
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

    def defer(self, block: Block) -> None:
        """Let a freed block wait for the end of a capture, in which no event can be recorded."""
        self._deferred.append(block)

    def take_deferred(self) -> list[Block]:
        """Record the events of blocks that waited for a capture; return those without any.

        What a stream did in the capture is done only when the graph runs.
        """
        deferred, self._deferred = self._deferred, []
        unused = []
        for block in deferred:
            assert block.stream_uses is not None
            block.stream_uses -= block.capture_uses or set()
            block.capture_uses = None
            if block.stream_uses:
                self.record(block)
            else:
                block.stream_uses = None
                unused.append(block)
        return unused

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
        pending = (*self._complete, *waiting, *self._deferred)
        return list({id(block): block for block in pending}.values())
