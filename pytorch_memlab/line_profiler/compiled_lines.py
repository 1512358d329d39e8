"""Lines of compiled graphs: Note [Lines of compiled graphs]."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from types import CodeType, FrameType

from .._common.frames.compiled_code import Frame, Frames, RunFollower, compiled_code
from .device_selection import DeviceSelection
from .function_intervals import FrameIntervals, FunctionIntervals
from .line_store import LineStore, LineTotals
from .tracer import current_tracer

Place = tuple[CodeType, int]
"""A line of a profiled function."""


class CompiledLines:
    """Charges the lines of one profiler's functions with what compiled graphs of them take."""

    def __init__(
        self,
        store: LineStore,
        selection: DeviceSelection,
        codes: Mapping[int, CodeType],
        listener: FunctionIntervals,
    ) -> None:
        self._store = store
        self._selection = selection
        self._codes = codes
        self._listener = listener
        self._places: dict[Frames, tuple[Place, ...]] = {}

    def start(self) -> None:
        compiled_code.follow(self)

    def stop(self) -> None:
        compiled_code.followers.remove(self)

    def codes_changed(self) -> None:
        """Look for lines again: other functions are profiled."""
        self._places.clear()

    def replaced(self, code: CodeType, generated: CodeType, is_start: bool) -> None:
        self._listener.replaced(code, generated, is_start)
        if id(code) in self._codes:
            current_tracer().watch(self._listener, (generated,))

    def compiling(self) -> AbstractContextManager[None]:
        return current_tracer().paused()

    def begin(self, lines: frozenset[Frames], is_hit: bool, _flops: object) -> RunFollower:
        frame, root = self._running_frame() if is_hit else (None, None)
        if is_hit:
            self._hit(lines, None if frame is None else self._listener.original(frame.f_code))
        return _Run(self, frame, root)

    def enter(self, code: CodeType) -> FrameIntervals:
        return FrameIntervals(self._store.lines_of(id(code)), self._selection)

    def original(self, code: CodeType) -> CodeType:
        """The code of the program that a code is, or runs in place of."""
        return self._listener.original(code)

    def places(self, frames: Frames) -> tuple[Place, ...]:
        """The lines of profiled functions among frames, outermost first."""
        places = self._places.get(frames)
        if places is None:
            places = self._places[frames] = tuple(self._lookup(frames))
        return places

    def _lookup(self, frames: Frames) -> Iterator[Place]:
        for frame in frames:
            code = next((code for code in self._codes.values() if _has(code, frame)), None)
            if code is not None:
                yield code, frame[1]

    def _running_frame(self) -> tuple[FrameType, FrameIntervals] | tuple[None, None]:
        """The frame of a profiled function that calls the graph, and its intervals."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if self._listener.is_generated(frame.f_code):
                intervals = current_tracer().listener_of(frame, self._listener)
                if isinstance(intervals, FrameIntervals):
                    return frame, intervals
                return None, None
            frame = frame.f_back
        return None, None

    def _hit(self, lines: frozenset[Frames], running: CodeType | None) -> None:
        places = {place for frames in lines for place in self.places(frames)}
        called = {code for code, _ in places if code is not running and code.co_name != "<module>"}
        for code, line in places | {(code, code.co_firstlineno) for code in called}:
            record = self._store.lines_of(id(code)).setdefault(line, LineTotals())
            record.hits += 1
            record.on_every_device = True


def _has(code: CodeType, frame: Frame) -> bool:
    """True if a frame is one of a code, by its file, its function's name and its line."""
    file, line, name = frame
    is_alike = code.co_filename == file and code.co_name == name
    return is_alike and any(code_line == line for _, _, code_line in code.co_lines())


class _Run:
    """One run of a graph, as frames of the program that stand at lines."""

    def __init__(
        self, lines: CompiledLines, frame: FrameType | None, intervals: FrameIntervals | None
    ) -> None:
        self._lines = lines
        self._root = None if frame is None else lines.original(frame.f_code)
        self._root_line = 0 if frame is None else frame.f_lineno
        self._root_intervals = intervals
        self._open: list[tuple[Place, FrameIntervals]] = []

    def at(self, frames: Frames) -> None:
        places = self._lines.places(frames)
        same = 0
        for (place, _), new in zip(self._open, places, strict=False):
            if place != new:
                break
            same += 1
        if same == len(places) == len(self._open):
            return
        is_moved = same < min(len(places), len(self._open)) and (
            self._open[same][0][0] is places[same][0]
        )
        self._leave_to(same + is_moved)
        if is_moved:
            place, (_, intervals) = places[same], self._open[same]
            intervals.resume(place[1])
            self._open[same] = place, intervals
        for code, line in places[len(self._open) :]:
            is_root = not self._open and code is self._root
            root = self._root_intervals if is_root else None
            intervals = self._lines.enter(code) if root is None else root
            intervals.resume(line)
            self._open.append(((code, line), intervals))

    def end(self) -> None:
        self._leave_to(0)

    def _leave_to(self, depth: int) -> None:
        while len(self._open) > depth:
            _, intervals = self._open.pop()
            if intervals is self._root_intervals:
                intervals.resume(self._root_line)
            else:
                intervals.leave()
