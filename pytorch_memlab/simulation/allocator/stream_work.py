"""Unfinished work on streams: what is asked to take time, and what waits for it.

Simulated work is done at once. Only ``torch.cuda._sleep`` takes time: its stream is busy until the
program synchronizes with it, whatever the clock says, so that a program that tests for delayed
reuse of memory finds the same on every machine. Only a query looks at the clock, so that a program
that polls comes to an end.
"""

from __future__ import annotations

import math


class Work:
    """A piece of work on a stream; it is finished when the stream has come so far."""

    __slots__ = ("_after", "_before", "_is_sleep", "end_time", "is_finished")

    def __init__(self, before: list[Work], end_time: float, *, is_sleep: bool) -> None:
        self._before = before
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
            ready += work._before
            ready += [one for one in work._after if one._only_waited()]
            work._before, work._after = [], []

    def comes_after(self, work: Work) -> bool:
        """True if it waits for `work` itself, not for something in between."""
        return work in self._before

    def _only_waited(self) -> bool:
        return not self._is_sleep and all(one.is_finished for one in self._before)


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
        """Let `stream` sleep after its other work."""
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
        elif not previous.comes_after(work):
            end_time = max(work.end_time, previous.end_time)
            self._last[stream] = Work([previous, work], end_time, is_sleep=False)

    def finish(self, stream: int | None = None) -> None:
        """Let all the work of `stream`, or of all streams, be done."""
        streams = list(self._last) if stream is None else [stream]
        for one in streams:
            work = self._last.pop(one, None)
            if work is not None:
                work.finish()
