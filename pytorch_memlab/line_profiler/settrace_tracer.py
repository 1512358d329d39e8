"""The tracer on ``sys.settrace``, for Python before 3.12.

Where another tracer is in the slot of a thread already, `chained_tracer` calls both.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import CodeType, FrameType
from typing import Any

from .._common.frames.hidden_calls import hide_from, show_to
from .chained_tracer import Chain, ChainedFrame, TraceFunction
from .watched import (
    FrameListener,
    LineListener,
    WatchedCode,
    WatchedCodes,
    WatchedFrame,
    outward,
    running_frames,
)

_HEADROOM = 200
"""Calls beyond the recursion limit in which intervals end when the program has come to it."""


class _TracedFrame(WatchedFrame):
    """A watched frame with its local trace function."""

    __slots__ = ("_session", "local", "thread")

    def __init__(self, watched: WatchedCode, session: SettraceSession, thread: int) -> None:
        WatchedFrame.__init__(self, watched)
        self._session = session
        self.thread = thread  # in which it runs, or ran last
        # None while the frame is suspended or when tracing ended, so that the cycle through the
        # bound method never outlives the frame.
        self.local: TraceFunction | None = self.trace

    def trace(self, frame: FrameType, event: str, _arg: object) -> TraceFunction | None:
        local = self.local
        if local is None:  # from before, found by another tracer
            frame.f_trace = None
            return None
        try:
            if event == "line":
                self.line(frame.f_lineno)
            elif event == "return":
                self._session.leave(frame, self)
        except BaseException:
            self._session.fail(frame)
            raise
        return local


class SettraceSession:
    """The trace functions from the first ``watch`` to the last ``unwatch``."""

    def __init__(self, codes: WatchedCodes) -> None:
        # True after the last ``unwatch``; other threads see it at their next call.
        self.over = False
        self._codes = codes
        self._running: dict[int, _TracedFrame] = {}
        self._chains: dict[int, Chain | None] = {}  # of the threads that this session traces
        self._failed: set[int] = set()
        self._ended: set[int] = set()  # threads of whose end the listeners know
        self._left: dict[int, tuple[CodeType, int]] = {}  # where each thread last left a frame
        self._trace, self._end_trace = _global_trace(codes.names, self.call)
        hide_from(self._trace)
        self._thread_trace = self._begin_thread
        self._threads_found = threading.gettrace()
        threading.settrace(self._thread_trace)

    def install(self) -> None:
        """Trace the calling thread, unless another tracer has taken its place there."""
        tracer, thread = sys.gettrace(), threading.get_ident()
        if tracer is None and thread in self._failed:
            tracer = self._given_back(thread)
        elif tracer is not None and thread in self._chains:
            return
        self._failed.discard(thread)
        self._install(tracer)
        chain = self._chains[thread]
        if chain is not None:
            chain.adopt(sys._getframe())

    def close(self) -> None:
        """Give back the tracers found; the threads that run on follow at their next call."""
        self.over = True
        show_to(self._trace)
        self._end_trace()
        if threading.gettrace() is self._thread_trace:
            threading.settrace(self._threads_found)
        thread = threading.get_ident()
        if self.has_slot() or (sys.gettrace() is None and thread in self._failed):
            sys.settrace(self._given_back(thread))
        for frame in outward(sys._getframe()):
            owner = getattr(frame.f_trace, "__self__", None)
            if isinstance(owner, ChainedFrame):
                owner.give_back(frame)
            elif isinstance(owner, _TracedFrame):
                frame.f_trace = None

    def has_slot(self) -> bool:
        """True if a trace function of this session is in the slot of the calling thread."""
        tracer = sys.gettrace()
        if tracer is self._trace:
            return True
        chain = self._chains.get(threading.get_ident())
        return chain is not None and tracer is chain.trace

    def is_alone(self) -> bool:
        """True if the calling thread has no other tracer."""
        return sys.gettrace() is self._trace

    def listener_of(self, frame: FrameType, listener: LineListener) -> FrameListener | None:
        traced = self._running.get(id(frame))
        # What tracing left behind may have been of a frame that had the same address.
        if traced is None or traced.watched.code is not frame.f_code:
            return None
        return traced.listener_of(listener)

    def call(
        self, frame: FrameType, event: str, arg: object, local: TraceFunction | None
    ) -> TraceFunction | None:
        """A frame begins or goes on, ``local`` being its last trace function."""
        if self.over:
            if sys.gettrace() is self._trace:
                sys.settrace(None)
            return None
        watched = self._codes.by_id.get(id(frame.f_code))
        if watched is None:
            return None
        if event != "call":
            running = self._running.get(id(frame))
            return running.trace(frame, event, arg) if running else None
        try:
            return self._enter(frame, watched, getattr(local, "__self__", None)).local
        except BaseException:
            self.fail(frame)
            raise

    def leave(self, frame: FrameType, traced: _TracedFrame) -> None:
        traced.leave()
        traced.local = None
        self._running.pop(id(frame), None)
        self._left[traced.thread] = traced.watched.code, frame.f_lineno

    def fail(self, frame: FrameType) -> None:
        """A trace function raises, so that CPython stops tracing this thread: intervals end."""
        thread = threading.get_ident()
        self._failed.add(thread)
        limit = sys.getrecursionlimit()
        try:
            _allow_recursion(limit + _HEADROOM)
            for running in outward(frame):
                traced = self._running.get(id(running))
                if traced is not None and traced.local is not None:
                    traced.local = None
                    with suppress(Exception):
                        traced.leave()
            self._tell_end(f"at {_place(frame.f_code, frame.f_lineno)}", thread)
        finally:
            sys.setrecursionlimit(limit)

    def notice_ends(self) -> None:
        """Tell of threads that are traced no more, though no trace function failed."""
        # The program took the own one off, as debuggers do, or came to the recursion limit. Open
        # intervals count for nothing: nothing tells when they ended.
        here = threading.get_ident()
        if here in self._chains and here not in self._ended and not self.has_slot():
            self._end_silently(here, [item for item in self._open() if item[1].thread == here])
        elsewhere = [item for item in self._open() if item[1].thread != here]
        if elsewhere:
            running = {(thread, id(frame)) for thread, frame, _ in running_frames(self._codes)}
            # Each leaves before its frame does: these never will.
            gone = [
                (key, traced)
                for key, traced in elsewhere
                if traced.local is not None and (traced.thread, key) not in running
            ]
            for thread in {traced.thread for _, traced in gone}:
                self._end_silently(thread, [item for item in gone if item[1].thread == thread])

    def follow_running_frames(self) -> None:
        """Bring the watches of running frames up to date, and begin with frames not yet known."""
        for thread, frame, watched in running_frames(self._codes):
            if thread in self._chains and thread not in self._ended:
                self._follow(thread, frame, watched)

    def end_unwatched_frames(self) -> None:
        """End the intervals of watches that are over, the innermost frame's first."""
        for key, traced in reversed(list(self._running.items())):
            traced.update(is_running=traced.local is not None)
            if not traced.watched.watches:
                traced.local = None
                self._running.pop(key, None)

    def relink(self, frame: FrameType) -> None:
        """Put our local trace functions back where another tracer took them off."""
        chain = self._chains.get(threading.get_ident())
        for running in outward(frame):
            traced = self._running.get(id(running))
            owner = getattr(running.f_trace, "__self__", None)
            if traced is not None and chain is not None and not isinstance(owner, ChainedFrame):
                chain.hold(running, traced.local)

    def _open(self) -> list[tuple[int, _TracedFrame]]:
        return [item for item in list(self._running.items()) if item[1].local is not None]

    def _end_silently(self, thread: int, frames: list[tuple[int, _TracedFrame]]) -> None:
        where = "before a profiled function ran"
        if thread in self._left:
            where = f"after {_place(*self._left[thread])}"
        for _, traced in frames:
            traced.local = None
            line = traced.drop()
            if line is not None:  # that of the innermost frame, which is the last one, stays
                where = f"at {_place(traced.watched.code, line)}"
        self._tell_end(where, thread)

    def _tell_end(self, where: str, thread: int) -> None:
        self._ended.add(thread)
        for listener in self._codes.listeners():
            listener.tracing_ended(where, thread)

    def _install(self, tracer: Any) -> None:
        thread = threading.get_ident()
        if self.has_slot():
            return
        chain = self._chains[thread] = None if tracer is None else Chain(self, tracer)
        sys.settrace(self._trace if chain is None else chain.trace)
        if thread in self._ended:
            self._ended.discard(thread)
            for listener in self._codes.listeners():
                listener.tracing_began_again(thread)

    def _begin_thread(self, frame: FrameType, event: str, arg: object) -> TraceFunction | None:
        """The trace function of a new thread until its first event."""
        if self.over:
            sys.settrace(self._threads_found)
        else:
            self._install(self._threads_found)
        trace: Any = sys.gettrace()
        return trace and trace(frame, event, arg)  # type: ignore[no-any-return]

    def _given_back(self, thread: int) -> TraceFunction | None:
        chain = self._chains.get(thread)
        return None if chain is None else chain.outer

    def _enter(self, frame: FrameType, watched: WatchedCode, before: object) -> _TracedFrame:
        if type(before) is _TracedFrame and before.watched is watched:
            before.update(is_running=False)
            traced, is_starting = before, False
            traced.local = traced.trace
            traced.thread = threading.get_ident()
        else:
            gone = self._running.get(id(frame))
            if gone is not None and gone.local is not None:  # a frame that had the same address
                self._end_silently(gone.thread, [(id(frame), gone)])
            traced = _TracedFrame(watched, self, threading.get_ident())
            is_starting = watched.is_starting(frame)
        self._running[id(frame)] = traced
        if not is_starting:
            traced.resume(frame.f_lineno)
        traced.end_removed()
        return traced

    def _follow(self, thread: int, frame: FrameType, watched: WatchedCode) -> None:
        traced, line = self._running.get(id(frame)), frame.f_lineno
        if traced is not None and traced.watched is watched:
            for listener in traced.update(is_running=True):
                listener.resume(line)
            if traced.local is None:  # tracing of its thread begins again
                traced.local, traced.thread = traced.trace, thread
                traced.resume(line)
        else:
            traced = self._running[id(frame)] = _TracedFrame(watched, self, thread)
            traced.resume(line)
        if self._running.get(id(frame)) is not traced:  # it ended in its thread
            traced.leave()
        chain = self._chains[thread]
        if chain is None:
            frame.f_trace = traced.local
        else:
            chain.hold(frame, traced.local)


def _allow_recursion(limit: int) -> None:
    """Set the limit, one call deeper than where it is put back: there it is not reached yet."""
    sys.setrecursionlimit(limit)


def _place(code: CodeType, line: int) -> str:
    return f"{os.path.basename(code.co_filename)}:{line}"


class _EveryName:
    def __contains__(self, name: object) -> bool:
        return True


def _global_trace(
    names: Any, call: Callable[[FrameType, str, Any, TraceFunction | None], TraceFunction | None]
) -> tuple[TraceFunction, Callable[[], None]]:
    """The global trace function, and a function that lets every call through to ``call``."""
    # All calls of the program pass here, so that the test is the cheapest that tells most of them
    # apart: a name in a dict; ``id`` or a hash of the code take longer.

    def trace(frame: FrameType, event: str, arg: object) -> TraceFunction | None:
        if frame.f_code.co_name in names:
            return call(frame, event, arg, frame.f_trace)
        return None

    def end() -> None:
        nonlocal names
        names = _EveryName()

    return trace, end


class SettraceTracer:
    """Line events from ``sys.settrace``, in the watching thread and the threads started since."""

    # A tracer found in place is called with every event, and put back with the last ``unwatch``.
    # CPython stops tracing a thread when either tracer raises. One that is set later, as by
    # ``breakpoint()``, replaces this one in its thread until the next ``watch`` after it has gone.
    # Listeners are told of such an end, at once or when it is noticed. Threads that C++ starts,
    # such as those of autograd for a GPU, are not traced. ``sys.monitoring`` has none of these
    # limits.

    name = "sys.settrace"

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self._codes = WatchedCodes()
        self._session: SettraceSession | None = None
        self._lock = threading.RLock()

    @property
    def watching(self) -> bool:
        return bool(self._codes)

    def watch(self, listener: LineListener, codes: Iterable[CodeType]) -> None:
        with self._lock:
            self.notice_ends()
            self._codes.add(listener, codes)
            if self._session is None:
                self._session = SettraceSession(self._codes)
            self._session.install()
            self._session.follow_running_frames()

    def unwatch(self, listener: LineListener) -> None:
        with self._lock:
            self.notice_ends()
            self._codes.remove(listener)
            if self._session is not None:
                self._session.end_unwatched_frames()
                if not self._codes:
                    self._session.close()
                    self._session = None

    def notice_ends(self) -> None:
        with self._lock:
            if self._session is not None:
                self._session.notice_ends()

    def listener_of(self, frame: FrameType, listener: LineListener) -> FrameListener | None:
        session = self._session
        return None if session is None else session.listener_of(frame, listener)

    @contextmanager
    def paused(self) -> Iterator[None]:
        session, trace = self._session, sys.gettrace()
        if session is None or not session.is_alone():
            yield
            return
        sys.settrace(None)
        try:
            yield
        finally:
            if sys.gettrace() is None and not session.over:
                sys.settrace(trace)
