"""Tracers, their listeners, and watched codes with their frames.

No torch here: a tracer says where the program is, its listeners measure.

Note [Frames and generators in the two tracers]

An interval belongs to a frame, and begins and ends with the frame's own events. Calls are part of
the line that makes them. ``enter`` comes with a new frame, ``line`` with each line, ``leave`` when
the frame returns, yields, waits or unwinds, and ``resume`` when a suspended frame goes on.

No listener or tracer holds a frame, which would keep the locals of a suspended generator alive.
Frames are found by ``id``. A generator that is dropped while it is suspended may end without an
event. The next frame at its address takes its place, so there are never more entries than
addresses of frames.

``sys.monitoring`` gives events for watched codes only, in all threads, and tells a start from a
resumption. An exception in a callback reaches the program, and the events go on.

``sys.settrace`` gives ``call`` for both. A frame starts if its last instruction is the one before
its first line (``WatchedCode.is_starting``). CPython ends tracing of a thread when a trace function
raises, and another tool may take its slot. An interval that was open then counts only if the
tracer itself saw the end, for otherwise nothing tells when it was.
"""

from __future__ import annotations

import opcode
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR, CO_ITERABLE_COROUTINE
from types import CodeType, FrameType
from typing import Any, Protocol

from .._common.frames.thread_frames import thread_frames


class FrameListener(Protocol):
    """Listens to one running frame of a watched code."""

    def line(self, line: int, /) -> None:
        """The frame arrived at ``line``: the open interval ends, a new one begins, a hit."""

    def resume(self, line: int, /) -> None:
        """The frame stands in the middle of ``line``: an interval begins, without a hit."""

    def leave(self) -> None:
        """The open interval ends, if there is one."""

    def drop(self) -> int | None:
        """The open interval counts for nothing; returns its line, None if none is open."""


class LineListener(Protocol):
    """Listens to the frames of watched codes."""

    def enter(self, code: CodeType, line: int, /) -> FrameListener:
        """A frame of ``code`` is there; ``line``, its first line, has an interval from now."""
        # ``resume`` follows at once where the frame was already running.

    def tracing_ended(self, where: str, thread: int) -> None:
        """No frame of a thread is traced any more; ``where`` is such as ``at train.py:12``."""

    def tracing_began_again(self, thread: int) -> None:
        """The frames of a thread of which ``tracing_ended`` told are traced again."""


class LineTracer(Protocol):
    """Tells listeners what the frames of the codes that they watch do, in all traced threads."""

    @property
    def name(self) -> str:
        """``sys.settrace`` or ``sys.monitoring``."""

    @property
    def reason(self) -> str:
        """Why this one, in a sentence."""

    def watch(self, listener: LineListener, codes: Iterable[CodeType]) -> None:
        """Tell ``listener`` about frames of ``codes``, running ones too; again for more codes."""

    def unwatch(self, listener: LineListener) -> None:
        """End the listener's open intervals; with the last listener the tracer is given back."""

    def notice_ends(self) -> None:
        """Tell the listeners of tracing that has ended without a word, now rather than later."""

    def listener_of(self, frame: FrameType, listener: LineListener) -> FrameListener | None:
        """The listener of a running frame that a listener gave; None if it gave none."""

    def paused(self) -> AbstractContextManager[None]:
        """Within: this thread runs no watched code, and need not be traced."""


SUSPENDS = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE


class Watch:
    """One listener's watch, from its first ``watch`` to its ``unwatch``."""

    __slots__ = ("codes", "listener")

    def __init__(self, listener: LineListener) -> None:
        self.listener = listener
        self.codes: list[WatchedCode] = []


class WatchedCode:
    """A code and its watches."""

    __slots__ = ("code", "first_line", "start", "watches")

    def __init__(self, code: CodeType) -> None:
        self.code = code  # kept alive: codes are found by ``id``, as equal ones compare equal
        self.first_line = code.co_firstlineno
        self.start = _start_offset(code)
        self.watches: tuple[Watch, ...] = ()

    def is_starting(self, frame: FrameType) -> bool:
        """True if the frame, at a call event, has run none of its lines yet."""
        return frame.f_lasti <= self.start


class WatchedCodes:
    """All codes that are watched."""

    def __init__(self) -> None:
        self.by_id: dict[int, WatchedCode] = {}
        # How many watched codes have a name: a cheaper test than that of ``by_id``. The membership
        # test of a Counter takes longer.
        self.names: dict[str, int] = {}
        self._watches: dict[int, Watch] = {}

    def __bool__(self) -> bool:
        return bool(self._watches)

    def add(self, listener: LineListener, codes: Iterable[CodeType]) -> list[WatchedCode]:
        """Let a listener watch codes; returns those of them that had no listener."""
        watch = self._watches.setdefault(id(listener), Watch(listener))
        new = []
        for code in codes:
            watched = self.by_id.get(id(code))
            if watched is None:
                watched = self.by_id[id(code)] = WatchedCode(code)
                self.names[code.co_name] = self.names.get(code.co_name, 0) + 1
                new.append(watched)
            if watch not in watched.watches:
                watched.watches = (*watched.watches, watch)
                watch.codes.append(watched)
        return new

    def remove(self, listener: LineListener) -> list[WatchedCode]:
        """End a listener's watch; returns the codes that have no listener any more."""
        watch = self._watches.pop(id(listener), None)
        if watch is None:
            return []
        unwatched = []
        for watched in watch.codes:
            watched.watches = tuple(other for other in watched.watches if other is not watch)
            if not watched.watches:
                self._forget(watched.code)
                unwatched.append(watched)
        return unwatched

    def listeners(self) -> list[LineListener]:
        return [watch.listener for watch in list(self._watches.values())]

    def _forget(self, code: CodeType) -> None:
        del self.by_id[id(code)]
        self.names[code.co_name] -= 1
        if not self.names[code.co_name]:
            del self.names[code.co_name]


class WatchedFrame:
    """The listeners of one frame, called as one."""

    __slots__ = ("_entered", "_watches", "leave", "line", "resume", "watched")

    line: Callable[[int], None]
    resume: Callable[[int], None]
    leave: Callable[[], None]

    def __init__(self, watched: WatchedCode) -> None:
        self.watched = watched
        self._watches = watches = watched.watches
        if len(watches) == 1:
            only = watches[0].listener.enter(watched.code, watched.first_line)
            self._entered = {watches[0]: only}
            self.line, self.resume, self.leave = only.line, only.resume, only.leave
        else:
            self._bind({watch: self._enter(watch) for watch in watches})

    def update(self, *, is_running: bool) -> list[FrameListener]:
        """Follow watches that began or ended since; the caller resumes the new ones returned."""
        watches = self.watched.watches
        if self._watches is watches:
            return []
        entered = self._entered
        new = {watch: self._enter(watch) for watch in watches if watch not in entered}
        current = entered | new
        self._bind({watch: current[watch] for watch in watches})
        self._watches = watches
        if is_running:
            for watch, listener in entered.items():
                if watch not in watches:
                    listener.leave()
        return list(new.values())

    def end_removed(self) -> None:
        """End the intervals of watches that another thread ended while this frame was entered."""
        watches = self.watched.watches
        if self._watches is not watches:
            for watch, listener in self._entered.items():
                if watch not in watches:
                    listener.leave()

    def drop(self) -> int | None:
        """Let the open intervals count for nothing; returns their line, None if none is open."""
        lines = [listener.drop() for listener in self._entered.values()]
        return next((line for line in lines if line is not None), None)

    def listener_of(self, listener: LineListener) -> FrameListener | None:
        """The listener of this frame that a listener gave."""
        entered = self._entered.items()
        return next((of_frame for watch, of_frame in entered if watch.listener is listener), None)

    def _enter(self, watch: Watch) -> FrameListener:
        return watch.listener.enter(self.watched.code, self.watched.first_line)

    def _bind(self, entered: dict[Watch, FrameListener]) -> None:
        self._entered = entered  # one object, for other threads read it
        listeners = list(entered.values())
        self.line = _all([listener.line for listener in listeners])
        self.resume = _all([listener.resume for listener in listeners])
        self.leave = _all([listener.leave for listener in listeners])


def outward(frame: FrameType | None) -> Iterator[FrameType]:
    """The frame, its caller, and so on."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def running_frames(codes: WatchedCodes) -> list[tuple[int, FrameType, WatchedCode]]:
    """The frames of watched codes with the idents of their threads, callers first."""
    innermost = thread_frames()
    # A reference to this function's own frame in a local would be a cycle that keeps all callers'
    # locals until the next garbage collection.
    innermost[threading.get_ident()] = sys._getframe(1)
    return [
        (thread, frame, codes.by_id[id(frame.f_code)])
        for thread, last in innermost.items()
        for frame in reversed(list(outward(last)))
        if id(frame.f_code) in codes.by_id
    ]


def _all(methods: list[Callable[..., None]]) -> Callable[..., None]:
    if len(methods) == 1:
        return methods[0]

    def call(*args: Any) -> None:
        for method in methods:
            method(*args)

    return call


def _start_offset(code: CodeType) -> int:
    """The largest ``f_lasti`` with which a frame of the code can stand before its first line."""
    if not code.co_flags & SUSPENDS:
        return len(code.co_code)  # call events of a plain function are all starts
    resume, instructions = opcode.opmap["RESUME"], code.co_code
    return next(
        offset
        for offset in range(0, len(instructions), 2)
        if instructions[offset] == resume and instructions[offset + 1] == 0
    )
