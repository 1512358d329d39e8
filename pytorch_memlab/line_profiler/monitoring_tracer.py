"""The tracer on ``sys.monitoring``, from Python 3.12: only watched code costs anything."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from types import CodeType, FrameType
from typing import Any

from ..errors import UsageError
from .watched import (
    FrameListener,
    LineListener,
    WatchedCode,
    WatchedCodes,
    WatchedFrame,
    running_frames,
)

_TOOLS = (3, 4, 5, 2, 1, 0)
"""Tool ids as they are tried: first the two without a name, since cProfile fails where another
tool holds the profilers' (2), as coverage does with its own (1) and debuggers with theirs (0)."""

_monitoring: Any = getattr(sys, "monitoring", None)
_getframe = sys._getframe


class NoFreeToolError(UsageError):
    """All tool ids of ``sys.monitoring`` are in use."""


class MonitoringTracer:
    """Line events of the watched codes. See Note [Frames and generators in the two tracers]."""

    name = "sys.monitoring"

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self._codes = WatchedCodes()
        self._running: dict[int, WatchedFrame] = {}
        self._suspended: dict[int, WatchedFrame] = {}
        self._loops: dict[tuple[int, int, int], int] = {}
        self._tool: int | None = None
        self._lock = threading.RLock()

    def watch(self, listener: LineListener, codes: Iterable[CodeType]) -> None:
        with self._lock:
            if self._tool is None:
                self._tool = _take_tool(self._callbacks())
            for watched in self._codes.add(listener, codes):
                # What a former holder of the id disabled comes back when its events go first.
                _monitoring.set_local_events(self._tool, watched.code, 0)
                _monitoring.set_local_events(self._tool, watched.code, _local_events())
            for _, frame, watched in running_frames(self._codes):
                self._follow(frame, watched)

    def unwatch(self, listener: LineListener) -> None:
        with self._lock:
            for watched in self._codes.remove(listener):
                _monitoring.set_local_events(self._tool, watched.code, 0)
            self._end_unwatched()
            if self._tool is not None and not self._codes:
                _monitoring.set_events(self._tool, 0)
                for event in self._callbacks():
                    _monitoring.register_callback(self._tool, event, None)
                _monitoring.free_tool_id(self._tool)
                self._tool = None

    def notice_ends(self) -> None:
        """Nothing to tell: an exception in a callback ends nothing, and no tool takes its place."""

    def listener_of(self, frame: FrameType, listener: LineListener) -> FrameListener | None:
        running = self._running.get(id(frame))
        return None if running is None else running.listener_of(listener)

    def paused(self) -> AbstractContextManager[None]:
        return nullcontext()  # code that is not watched costs nothing

    def _callbacks(self) -> dict[int, Callable[..., object]]:
        events = _monitoring.events
        return {
            events.LINE: _line_callback(self._running, self._catch_up),
            events.JUMP: self._jump,
            events.PY_START: self._start,
            events.PY_RESUME: self._resume,
            events.PY_THROW: self._throw,
            events.PY_YIELD: self._yield,
            events.PY_RETURN: self._return,
            events.PY_UNWIND: self._return,
        }

    def _end_unwatched(self) -> None:
        """End the intervals of watches that are over, the innermost frame's first."""
        for key, running in reversed(list(self._running.items())):
            running.update(is_running=True)
            if not running.watched.watches:
                self._running.pop(key, None)
        for key, suspended in list(self._suspended.items()):
            if not suspended.watched.watches:
                self._suspended.pop(key, None)
        if not self._codes:
            self._loops.clear()

    def _start(self, code: CodeType, _offset: int) -> None:
        watched = self._codes.by_id.get(id(code))
        if watched is not None:
            running = self._running[id(_getframe(1))] = WatchedFrame(watched)
            running.end_removed()

    def _resume(self, code: CodeType, _offset: int) -> None:
        self._go_on(code, _getframe(1))

    def _throw(self, code: CodeType, _offset: int, _error: BaseException) -> None:
        if id(code) in self._codes.by_id:
            self._go_on(code, _getframe(1))

    def _yield(self, _code: CodeType, _offset: int, _value: object) -> None:
        key = id(_getframe(1))
        running = self._running.get(key)
        if running is not None:
            running.leave()
            self._suspended[key] = running
            self._running.pop(key, None)

    def _return(self, code: CodeType, _offset: int, _value: object) -> None:
        if id(code) in self._codes.by_id:
            # After an interrupt in leave() the frame unwinds, which is the next event.
            key = id(_getframe(1))
            running = self._running.get(key)
            if running is not None:
                running.leave()
                self._running.pop(key, None)

    def _jump(self, code: CodeType, source: int, target: int) -> object:
        """A loop on one line: each turn is a hit, though the line does not change."""
        line = self._loops.get((id(code), source, target))
        if line is None:
            line = _line_at(code, source)
            if target > source or line is None or line != _line_at(code, target):
                return _monitoring.DISABLE
            self._loops[id(code), source, target] = line
        running = self._running.get(id(_getframe(1)))
        if running is not None:
            running.line(line)
        return None

    def _go_on(self, code: CodeType, frame: FrameType) -> None:
        watched = self._codes.by_id.get(id(code))
        if watched is None:
            return
        running = self._suspended.pop(id(frame), None)
        if running is not None and running.watched is watched:
            running.update(is_running=False)
            is_starting = False
        else:
            running, is_starting = WatchedFrame(watched), watched.is_starting(frame)
        self._running[id(frame)] = running
        if not is_starting:
            running.resume(frame.f_lineno)
        running.end_removed()

    def _follow(self, frame: FrameType, watched: WatchedCode) -> None:
        running, line = self._running.get(id(frame)), frame.f_lineno
        if running is not None and running.watched is watched:
            for listener in running.update(is_running=True):
                listener.resume(line)
        else:
            running = self._running[id(frame)] = WatchedFrame(watched)
            running.resume(line)
        if self._running.get(id(frame)) is not running:  # it ended in its thread
            running.leave()

    def _catch_up(self, frame: FrameType, line: int) -> None:
        """A frame arrives at a line before ``watch`` came to it, in another thread."""
        watched = self._codes.by_id.get(id(frame.f_code))
        if watched is not None:
            running = self._running[id(frame)] = WatchedFrame(watched)
            running.resume(line)
            running.line(line)
            running.end_removed()


def _line_callback(
    running: dict[int, WatchedFrame], catch_up: Callable[[FrameType, int], None]
) -> Callable[[CodeType, int], None]:
    def line_event(_code: CodeType, line: int) -> None:
        try:
            frame = running[id(_getframe(1))]
        except KeyError:
            catch_up(_getframe(1), line)
        else:
            frame.line(line)

    return line_event


def _local_events() -> int:
    events = _monitoring.events
    starts = events.PY_START | events.PY_RESUME
    ends = events.PY_YIELD | events.PY_RETURN
    return int(events.LINE | events.JUMP | starts | ends)


def _take_tool(callbacks: dict[int, Callable[..., object]]) -> int:
    taken = []
    for tool in _TOOLS:
        try:
            _monitoring.use_tool_id(tool, "pytorch_memlab")
        except ValueError:
            taken.append(str(_monitoring.get_tool(tool)))
            continue
        for event, callback in callbacks.items():
            _monitoring.register_callback(tool, event, callback)
        # These two cannot be asked for one code before Python 3.15.
        _monitoring.set_events(tool, _monitoring.events.PY_THROW | _monitoring.events.PY_UNWIND)
        return tool
    raise NoFreeToolError(
        f"sys.monitoring has no free tool id ({', '.join(taken)} hold them): stop one of these "
        "tools, or set PYTORCH_MEMLAB_TRACER=settrace"
    )


def _line_at(code: CodeType, offset: int) -> int | None:
    return next((line for start, end, line in code.co_lines() if start <= offset < end), None)
