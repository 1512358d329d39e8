"""The one owner of a device's peak counters: any number of windows over them at once.

Note [Peak windows over one counter]

The allocator has one peak for the whole process, and a reset takes it from everybody else. So
every reading adds the peak to the last *segment* before it resets the counter. A window begins a
segment, and its peak is the highest of that segment and all later ones. When a window ends, its
segment is merged into the one before, in which all remaining windows were open as well. So a
reading costs the same however many windows are open, and one in which nothing happened costs
neither a row nor a reset.

The program itself has the outermost window: what it reads and resets with ``torch.cuda`` is
answered from its own segments while a tracker owns the counter. Allocators of real GPUs cannot
raise a peak again. If the last window ends while the program's peak is above the current memory,
the tracker goes on answering until the program resets its peak.

A line profiler has no window on a device that the program does not use yet. For the line of the
first use, ``await_use`` keeps the peaks that the program resets before the profiler comes to read.

An interrupt, or Python's limit of recursion, may come at any call. So what belongs together is
changed by statements that call nothing, after all that may fail. Where a tracker begins to own the
peaks, interrupts wait, and what fails gives them back.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

import numpy as np

from .._common.interrupts.uninterrupted import STANDARD_SIGNALS, uninterrupted
from .._common.process.made_once import WeakRegistry
from ..devices import NO_APPROXIMATIONS, Device, Stats, no_approximations
from .row import (
    PEAK,
    UNREAD,
    ZERO,
    Fingerprint,
    Row,
    RowMaker,
    Sample,
    after_reset,
    fingerprint,
    highest_row,
    nest_peaks,
    replace_peaks,
    row_of,
    values_of,
)

if TYPE_CHECKING:
    from ..simulation.inspect import Generation

_BATCH = 64


class PeakSegment:
    """The readings between the beginnings of two windows; it holds a few of them at the most."""

    __slots__ = ("base", "rows", "windows")

    def __init__(self, base: Sample) -> None:
        self.windows: set[int] = set()  # ``id`` of the open ones that begin with it
        self.base = base  # the reading when it begins
        self.rows: list[bytes] = []

    def begin(self, base: Sample) -> None:
        self.base = base
        self.rows = []

    def merge_peaks(self, row: bytes) -> None:
        """Add a reading, of which only the peaks are asked for later."""
        rows = self.rows
        rows.append(row)
        if len(rows) > _BATCH:
            self.rows = [highest_row(rows)]

    def merged(self) -> list[bytes]:
        """The highest values of all readings as one row, none without any."""
        if len(self.rows) > 1:
            self.rows = [highest_row(self.rows)]
        return self.rows

    def peak(self) -> Row:
        """Highest values so far, one for each group and pool; never below the base."""
        rows = self.merged()
        return values_of(rows[0])[PEAK] if rows else self.base.current


_trackers: WeakRegistry[PeakTracker] = WeakRegistry()


def peak_tracker(device: Device) -> PeakTracker:
    """The tracker of a device: one for all who need it at the same time."""
    return _trackers.of(device, lambda: PeakTracker(device))


class Window:
    """A stretch of time over one device, with the peaks in it; it ends with its object."""

    __slots__ = ("generation", "is_open", "kept", "segment", "start", "tracker")

    def __init__(self, tracker: PeakTracker, segment: PeakSegment, start: Sample) -> None:
        # Bytes that were allocated from its beginning to its end, or until it was begun again, and
        # were in use then; 0 where the device does not tell.
        self.kept = 0
        self.generation: Generation | None = None
        self.tracker = tracker
        self.segment = segment  # the one that begins with it
        self.start = start
        self.is_open = True
        segment.windows.add(id(self))

    def read(self) -> Sample:
        """The counters now, with the peaks since the window began; it stays open."""
        tracker = self.tracker
        with tracker.lock:
            return tracker.since(self.segment, tracker.sample())

    def close(self) -> Sample | None:
        """End it: the counters now, with the peaks since it began; None if it has ended."""
        return self.tracker.close(self)


class _OpenWindow(Window):
    """A window until it ends: of one that has ended, nothing runs when its object dies."""

    __slots__ = ()

    def __del__(self) -> None:
        if not sys.is_finalizing() and self.segment in self.tracker.segments:
            self.close()


class PeakTracker:
    """All windows over one device, and the peaks as the program itself would read them."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.lock = threading.RLock()
        self.segments: list[PeakSegment] = []
        self._program: Window | None = None
        self._windows: set[int] = set()
        self._awaiting = 0
        self._before_use: PeakSegment | None = None
        read = device.approximations
        self._approximations = None if read is no_approximations else read
        self._rows = RowMaker()
        self._generations = device.generations()
        self._forget_readings()

    def _forget_readings(self) -> None:
        self._fingerprint: Fingerprint = UNREAD
        self._latest = ZERO
        self._unchanged: Sample | None = None

    def await_use(self) -> None:
        """Lose no peak until ``stop_awaiting``, though the program resets them."""
        with uninterrupted(*STANDARD_SIGNALS), self.lock:
            self._awaiting += 1
            if self._before_use is None:
                self._before_use = PeakSegment(ZERO)
                if self.segments:
                    self.segments.insert(0, self._before_use)
            self.device.install_view(self)

    def stop_awaiting(self) -> None:
        """One less awaits the first use of the device."""
        with uninterrupted(*STANDARD_SIGNALS), self.lock:
            self._awaiting -= 1
            if not self._awaiting:
                self._before_use = None
                if self._program is None:
                    self.device.remove_view(self)

    def open(self) -> tuple[Window, Sample]:
        """Begin a window now, with the reading at its beginning."""
        self.device.start_tracking()
        if self.segments:
            return self._opened()
        with uninterrupted(*STANDARD_SIGNALS):
            return self._opened()

    def _opened(self) -> tuple[Window, Sample]:
        window = None
        try:
            with self.lock:
                self._own_peaks()
                sample = self.sample()
                window = _OpenWindow(self, self._begin(sample), sample)
                self._windows.add(id(window))
                if self._generations is not None:
                    window.generation = self._generations.begin()
                return window, sample
        except BaseException:
            self._give_up(window)
            raise

    def open_from_first_use(self, start: Sample) -> Window:
        """A window on a device that came into use after its reader began."""
        self.device.start_tracking()
        window = None
        with uninterrupted(*STANDARD_SIGNALS):
            try:
                with self.lock:
                    self._own_peaks()
                    window = _OpenWindow(self, self.segments[0], start)
                    self._windows.add(id(window))
                    if self._generations is not None:
                        window.generation = self._generations.begin_from_first_block()
                    return window
            except BaseException:
                self._give_up(window)
                raise

    def _give_up(self, window: Window | None) -> None:
        """A window could not be opened, or its opener was interrupted."""
        if window is not None:
            self.close(window)
            return
        self.device.stop_tracking()
        with self.lock:
            if not self._windows:
                self._release()

    def sample(self) -> Sample:
        """Read the device for all windows; the very same object if nothing happened since."""
        stats = self.device.stats()
        if not stats:
            return self._latest
        read = self._approximations  # on hardware, a call less at every line
        approximations = NO_APPROXIMATIONS if read is None else read()
        current = fingerprint(stats, "all")
        seen = self._fingerprint
        if current == seen and approximations is self._latest.approximations:
            if self._unchanged is None:
                self._unchanged = self._latest.unchanged()
            return self._unchanged
        # Until the peaks are reset, an interrupt leaves nothing that counts as read.
        self._fingerprint = UNREAD
        if not seen:
            self._rows.begin(stats)
        row = self._rows.row(stats)
        sample = Sample(row, stats["allocated_bytes"]["all"]["current"], approximations)
        self.segments[-1].merge_peaks(row)
        self.device.reset_peaks()
        self._fingerprint = after_reset(current)
        self._latest = sample
        self._unchanged = None
        return sample

    def restart(self, window: Window) -> Sample | None:
        """As ``close``, but the window begins again; its ``start`` becomes what this returns."""
        with self.lock:
            if not window.is_open:
                return None
            result = sample = self.sample()
            segment = window.segment
            if segment is not self.segments[-1] or len(segment.windows) > 1:
                result = self.since(segment, sample)
                self._begin_again(window, sample)
            elif segment.rows:
                (highest,) = segment.rows if len(segment.rows) == 1 else segment.merged()
                if highest is not sample.row:
                    result = sample.with_peak(values_of(highest)[PEAK])
                # The windows further out keep the peaks of what has ended here.
                self.segments[-2].merge_peaks(highest)
                segment.begin(sample)
            window.start = result
            if window.generation is not None and self._generations is not None:
                window.kept = self._generations.restart(window.generation)
            return result

    def close(self, window: Window) -> Sample | None:
        """See ``Window.close``. After an interrupt it can be called again."""
        with self.lock:
            if not window.is_open:
                return None
            if not any(segment is window.segment for segment in self.segments):
                self._count_out(window)  # what an error left of it, which ended it half way
                return None
            result = self.since(window.segment, self.sample())
            try:
                self._count_out(window)
            except BaseException:  # an interrupt left it half done
                self._count_out(window)
                raise
        self.device.stop_tracking()
        return result

    def since(self, segment: PeakSegment, sample: Sample) -> Sample:
        """A sample with the peaks since a segment began."""
        return sample.with_peak(self._peak_since(segment))

    def as_program_reads(self, stats: Stats) -> Stats:
        """Counters just read, with the peaks that the program would see without the tracker."""
        if self._program is None or not stats:
            return stats
        peak = self._peak_since(self._program.segment)
        return replace_peaks(stats, np.maximum(peak, values_of(row_of(stats))[PEAK]))

    def program_resets(self) -> bool:
        """The program's own window begins again; False while the tracker does not own the peaks."""
        if self._program is None:
            stats = self.device.stats()
            if stats and self._before_use is not None:
                self._before_use.merge_peaks(row_of(stats))
            return False
        self._begin_again(self._program, self.sample())
        if not self._windows:
            self.device.reset_peaks()
            self._release()
        return True

    def _peak_since(self, segment: PeakSegment) -> Row:
        segments = self.segments
        position = len(segments) - 1
        peak = segments[position].peak()
        while segments[position] is not segment:
            position -= 1
            peak = np.maximum(peak, segments[position].peak())
        return peak

    def _begin(self, sample: Sample) -> PeakSegment:
        segment = PeakSegment(sample)
        self.segments.append(segment)
        return segment

    def _begin_again(self, window: Window, sample: Sample) -> None:
        """End a window and begin it with a new segment."""
        before, segment = window.segment, PeakSegment(sample)
        segment.windows.add(id(window))
        # Calls nothing: the window has a segment of the tracker at any time.
        self.segments += (segment,)
        window.segment = segment
        self._leave(window, before)

    def _count_out(self, window: Window) -> None:
        """A window is over. Each step may be done twice, as after an interrupt."""
        self._windows.discard(id(window))
        self._end_generation(window)
        self._end(window)
        if not self._windows:
            self._release()
        window.is_open = False
        window.__class__ = Window

    def _end_generation(self, window: Window) -> None:
        if window.generation is not None and self._generations is not None:
            window.kept = self._generations.end(window.generation)
            window.generation = None

    def _end(self, window: Window) -> None:
        self._leave(window, window.segment)

    def _leave(self, window: Window, segment: PeakSegment) -> None:
        """A window begins with a segment no more, which is merged if it was the last one."""
        segment.windows.discard(id(window))
        if segment.windows or segment not in self.segments[1:]:
            return
        position = self.segments.index(segment)
        for row in segment.merged():
            self.segments[position - 1].merge_peaks(row)
        del self.segments[position]

    def _own_peaks(self) -> None:
        """Begin to own the peaks; the program's own peak so far is in its first segment."""
        if self.segments:
            return
        self.device.install_view(self)
        first = PeakSegment(self._latest)
        self._program = Window(self, first, self._latest)
        self.segments += [first] if self._before_use is None else [self._before_use, first]
        self.sample()

    def _release(self) -> None:
        """Give the peaks back if the device allows it; else answer until that is needless."""
        if self._program is None or not self.segments:
            if not self._awaiting:
                self.device.remove_view(self)
            return
        sample = self.sample()
        peak = self._peak_since(self._program.segment)
        if self.device.restore_peaks(nest_peaks(peak)) or bool((peak <= sample.current).all()):
            if not self._awaiting:
                self.device.remove_view(self)
            self.segments.clear()
            self._program = None
            self._forget_readings()
