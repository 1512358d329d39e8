"""From line events to measured intervals.

Note [Which line a byte belongs to]

A line has everything that happens from its event to the next event of the same frame. Calls are
part of the line that makes them, and a profiled function that is called has the same bytes on its
own lines again: lines of one function add up, lines of a caller and a callee do not. The ``def``
line has what happens between the call and the first line of the body. The line that is left last
has what returning frees.

The moment decides, and not who asked for the byte. A backward pass belongs to the line of
``backward()``, and memory that a finalizer frees to the line that runs then. An interval also has
what other threads do on the device at that time. A frame that is suspended has no interval: the
bytes belong to the frame that runs.

``kept`` is what was allocated in the interval and is in use at its end, ``freed`` what was in use
at its start and is not any more, ``delta`` the first less the second: each the mean of a hit.
Hardware counts bytes and does not tell which ones: there both are the least that ``delta`` allows.
Statistics are maxima over the hits. Counters that only grow count from the start of the interval.
"""

from __future__ import annotations

import sys
import threading
from time import perf_counter
from types import CodeType, FrameType

from ..devices import NO_APPROXIMATIONS, Approximations, Device
from ..records import TracingEnded
from ..scopes import ZERO, Sample, Window
from .device_selection import DeviceSelection
from .line_store import CallSite, LineStore, LineTotals, find_call_site
from .tracer import current_tracer
from .watched import SUSPENDS


class FunctionIntervals:
    """Listens to the frames of all functions of one profiler."""

    def __init__(self, store: LineStore, selection: DeviceSelection) -> None:
        self._store = store
        self._selection = selection
        self._ends: dict[tuple[str, int], bool] = {}  # whether tracing began again
        # By ``id``: what runs in place of a code, that code, and whether both begin alike.
        self._generated: dict[int, tuple[CodeType, CodeType, bool]] = {}

    def tracing_ended(self, where: str, thread: int) -> None:
        self._ends[where, thread] = False

    def tracing_began_again(self, thread: int) -> None:
        for end in self._ends:
            if end[1] == thread:
                self._ends[end] = True

    def forget_ends(self) -> None:
        """Tell nothing more of where tracing ended so far."""
        self._ends.clear()

    def ends(self) -> list[TracingEnded]:
        main = threading.main_thread().ident
        return list(
            dict.fromkeys(
                TracingEnded(where, thread == main, began_again)
                for (where, thread), began_again in self._ends.items()
            )
        )

    def replaced(self, code: CodeType, generated: CodeType, is_start: bool) -> None:
        """A compiler's code runs in place of a code, from its start or from a line within."""
        self._generated[id(generated)] = generated, code, is_start

    def original(self, code: CodeType) -> CodeType:
        """The code of the program that a code is, or runs in place of."""
        replaced = self._generated.get(id(code))
        return code if replaced is None else replaced[1]

    def is_generated(self, code: CodeType) -> bool:
        """True if a compiler made a code that runs in place of one of the program."""
        return id(code) in self._generated

    def generated_for(self, code: CodeType) -> list[CodeType]:
        """The codes that run in place of a code."""
        return [made for made, original, _ in self._generated.values() if original is code]

    def enter(self, code: CodeType, line: int) -> FrameIntervals:
        if id(code) in self._generated:
            return self._enter_generated(code, line)
        site = find_call_site(code, self._store.calls_of(id(code)), self._site_of)
        frame = FrameIntervals(self._store.lines_of(id(code)), self._selection, site)
        frame.resume(max(line, code.co_firstlineno))  # a module begins at line 0
        if code.co_name != "<module>":
            frame.count_call()
        return frame

    def _enter_generated(self, code: CodeType, line: int) -> FrameIntervals:
        _, original, is_start = self._generated[id(code)]
        calls = self._store.calls_of(id(original))
        site = find_call_site(code, calls, self._site_of) if is_start else None
        frame = FrameIntervals(self._store.lines_of(id(original)), self._selection, site)
        frame.resume(line)
        if is_start:
            frame.count_call()
        else:
            self._suspend_caller(code)
            frame.go_on()
        return frame

    def _site_of(self, frame: FrameType) -> CallSite | None:
        """The line of the user that called a running frame, if it is profiled too."""
        # Another frame may have let a generator go on than the one that called it.
        if frame.f_code.co_flags & SUSPENDS:
            return None
        listener = current_tracer().listener_of(frame, self)
        return listener.site if isinstance(listener, FrameIntervals) else None

    def _suspend_caller(self, resumed: CodeType) -> None:
        """The frame that a resumed one goes on for only waits for it: it has no part in that."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code is not resumed:
            frame = frame.f_back
        caller = None if frame is None else frame.f_back
        if caller is not None and self.original(caller.f_code) is self.original(resumed):
            waiting = current_tracer().listener_of(caller, self)
            if waiting is not None:
                waiting.leave()


class _OpenInterval:
    """The open interval of a frame on one device; it begins with the window."""

    __slots__ = ("began", "device", "name", "restart", "window")

    def __init__(self, device: Device, window: Window) -> None:
        self.began = window.start.allocated  # when the frame began or went on
        self.device = device
        self.name = device.name
        self.restart = window.tracker.restart
        self.window = window


class FrameIntervals:
    """The intervals of one frame: each from a line event to the frame's next event."""

    __slots__ = (
        "_all_lines",
        "_approximations",
        "_began",
        "_called",
        "_devices",
        "_line",
        "_lines",
        "_open",
        "_selection",
        "_site",
    )

    def __init__(
        self, lines: dict[int, LineTotals], selection: DeviceSelection, site: CallSite | None = None
    ) -> None:
        self._all_lines = lines
        self._lines = lines
        self._called: LineTotals | None = None
        self._selection = selection
        self._devices: tuple[Device, ...] = ()
        self._open: list[_OpenInterval] = []
        self._line: LineTotals | None = None
        self._began = 0.0
        self._approximations = NO_APPROXIMATIONS
        self._site = site

    @property
    def site(self) -> CallSite | None:
        """The line of the user that called this frame, None if that is not known."""
        return self._site

    def line(self, number: int) -> None:
        # This runs at every line of a profiled function: what it saves in calls, the user gains.
        ended = perf_counter()
        current = self._line
        if current is not None:
            current.time += ended - self._began
            selection = self._selection
            if not selection.single_device:
                current.on_every_device = True
            if selection.now() is not self._devices:
                self._change_devices()
            if not self._open:
                self._end_before_use(current)
            for interval in self._open:
                window = interval.window
                start = window.start
                end = interval.restart(window)
                if end is None:  # another thread has ended the profiling
                    continue
                try:
                    record = current.devices[interval.name]
                except KeyError:
                    record = current.on(interval.device)
                if end is not start or end is not record.unchanged:
                    record.add(start, end, window.kept)
        try:
            line = self._lines[number]
        except KeyError:
            line = self._arrive(number)
        line.hits += 1
        self._line = line
        self._began = perf_counter()

    def resume(self, number: int) -> None:
        """The frame goes on in the middle of a line, or begins at its ``def``."""
        if self._called is not None and self._called is self._line:
            self._take_call_back()
        self.leave()
        self._called, self._lines = None, self._all_lines
        self._devices = self._selection.now()
        self._open = [self._begin(device) for device in self._devices]
        if not self._open:
            self._approximations = self._selection.approximations_before_use()
        self._line = self._all_lines.setdefault(number, LineTotals())
        self._began = perf_counter()

    def count_call(self) -> None:
        """The ``def`` line is hit once for each call."""
        if self._site is not None:
            self._site.hits += 1
        if self._line is not None:
            self._line.hits += 1
            self.go_on()

    def go_on(self) -> None:
        """The next line event is no hit if it is that of the line that runs already."""
        # It finds no line, which spares the others a test for it.
        self._called, self._lines = self._line, {}

    def leave(self) -> None:
        ended = perf_counter()
        current = self._line
        if current is None:
            return
        current.time += ended - self._began
        self._began = ended
        current.on_every_device = current.on_every_device or not self._selection.single_device
        if self._selection.now() is not self._devices:
            self._change_devices()
        if not self._open:
            self._end_before_use(current)
        # Windows close as they opened, the last one first: that is what costs least.
        # What an interrupt leaves of this, a second call does; two threads may be in here.
        for interval in reversed(self._open.copy()):
            end = interval.window.close()
            if end is not None:
                window = interval.window
                current.on(interval.device).add(window.start, end, window.kept)
                if self._site is not None:
                    self._site.add(interval.name, end.allocated - interval.began)
        self._open = []
        self._line = None

    def drop(self) -> int | None:
        line, self._line = self._line, None
        if line is None:
            return None
        for interval in reversed(self._open.copy()):
            interval.window.close()
        self._open = []
        lines = tuple(self._all_lines.items())  # to which frames in other threads add
        return next((number for number, open_line in lines if open_line is line), None)

    def _arrive(self, number: int) -> LineTotals:
        """The line of a call's first line event, or one that was not hit before."""
        self._lines = self._all_lines
        line = self._all_lines.setdefault(number, LineTotals())
        if line is self._called:  # the body begins on the ``def`` line, which has its hit
            line.hits -= 1
        self._called = None
        return line

    def _take_call_back(self) -> None:
        """The frame did not begin, it runs already: the ``def`` line has no part in that."""
        if self._site is not None:
            self._site.hits -= 1
            self._site = None  # where this frame stands is not where it was called
        if self._line is not None:
            self._line.hits -= 1
        self.drop()

    def _end_before_use(self, line: LineTotals) -> None:
        """An interval ends in which no device was in use; the program may have read values."""
        approximations = self._selection.approximations_before_use()
        if approximations is not self._approximations:
            line.approximations_before_use.add(self._approximations, approximations)
            self._approximations = approximations

    def _change_devices(self) -> None:
        """Devices came into use, or another is the target, since the interval began."""
        devices = self._selection.now()
        before = self._open[0].window.start.approximations if self._open else self._approximations
        for interval in [opened for opened in self._open if opened.device not in devices]:
            interval.window.close()
            self._open.remove(interval)
        open_devices = {interval.device for interval in self._open}
        newly_used = self._selection.newly_used
        for device in devices:
            if device in newly_used and device not in open_devices:
                self._open.append(self._begin_from_first_use(device, before))
            elif device not in open_devices:
                self._open.append(self._begin(device))
        self._devices = devices

    def _begin(self, device: Device) -> _OpenInterval:
        return _OpenInterval(device, self._selection.tracker(device).open()[0])

    def _begin_from_first_use(self, device: Device, before: Approximations) -> _OpenInterval:
        start = Sample(ZERO.row, ZERO.allocated, before)
        return _OpenInterval(device, self._selection.tracker(device).open_from_first_use(start))
