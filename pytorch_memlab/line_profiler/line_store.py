"""The records of a line profiler: they grow with the number of lines, not of events."""

from __future__ import annotations

import sys
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FrameType

from .._common.frames.user_code import is_of_user
from ..devices import Approximations, Device
from ..records import (
    Approximation,
    ApproximationKey,
    DeviceInfo,
    LineEntry,
    mean,
    merge_approximations,
)
from ..scopes import HighestInterval, Sample

_PARTS_OF_FUNCTIONS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})
"""Code with own frames, some of them before Python 3.12, on lines of the function around."""


class CallSite:
    """A place in the user's code from which one function is called."""

    __slots__ = ("added", "code", "hits", "offset")

    def __init__(self, code: CodeType, offset: int) -> None:
        self.code = code
        # Of the instruction; to look up its line takes long in long code.
        self.offset = offset
        self.hits = 0
        self.added: dict[str, int] = {}

    def add(self, device: str, delta: int) -> None:
        """A call, or the part of one until it waits, added so many bytes on a device."""
        self.added[device] = self.added.get(device, 0) + delta


class CodeLines:
    """The lines of a code by the offsets of its instructions, read from it once."""

    def __init__(self, code: CodeType) -> None:
        ranges = [(start, line) for start, end, line in code.co_lines() if start < end]
        self._starts = [start for start, _ in ranges]
        self._lines = [line for _, line in ranges]
        self._first = code.co_firstlineno

    def at(self, offset: int) -> int:
        """The line of an instruction."""
        place = bisect_right(self._starts, offset) - 1
        line = self._lines[place] if place >= 0 else None
        return self._first if line is None else line


CallSites = dict[tuple[int, int], CallSite]
"""By the ``id`` of the caller's code, which a site keeps alive, and the offset."""


def find_call_site(
    code: CodeType,  # of the function that is called
    sites: CallSites,  # the sites of its calls so far
    # where the user called a running frame of a library; None if that is not known
    site_of: Callable[[FrameType], CallSite | None],
) -> CallSite | None:
    """The line of the user that called the innermost frame of a code; None if there is none."""
    # ``site_of`` spares the way to the user, which is long where modules import others.
    frame = sys._getframe(1)
    while frame.f_code is not code:
        if frame.f_back is None:  # a frame of another thread
            return None
        frame = frame.f_back
    caller = frame.f_back
    while caller is not None:
        calling = caller.f_code
        if is_of_user(calling.co_filename) and calling.co_name not in _PARTS_OF_FUNCTIONS:
            return _site_at(calling, caller.f_lasti, sites)
        outer = site_of(caller)
        if outer is not None:
            return _site_at(outer.code, outer.offset, sites)
        caller = caller.f_back
    return None


def _site_at(calling: CodeType, offset: int, sites: CallSites) -> CallSite:
    key = (id(calling), offset)
    site = sites.get(key)
    if site is None:
        site = sites.setdefault(key, CallSite(calling, offset))
    return site


_lock = threading.RLock()
"""Of all additions, which are rare: two threads may add to one line."""


class LineApproximations:
    """The approximations of one line; they grow with the number of ops, not of calls."""

    __slots__ = ("_sums",)

    def __init__(self) -> None:
        self._sums: dict[ApproximationKey, Approximation] = {}

    def add(self, start: Approximations, end: Approximations) -> None:
        """Add an interval by all approximations of the device when it began and ended."""
        sums = self._sums
        for key, approximation in end.items():
            before = start.get(key)
            if approximation is not before:
                new = approximation if before is None else approximation.minus(before)
                with _lock:
                    former = sums.get(new.key)
                    sums[new.key] = new if former is None else former + new

    def all(self) -> tuple[Approximation, ...]:
        """All so far, in the order in which they first happened."""
        return tuple(self._sums.copy().values()) if self._sums else ()


class DeviceLine:
    """One line on one device, over all its hits."""

    __slots__ = (
        "_in_a_row",
        "_last_rise",
        "_last_start",
        "approximations",
        "delta",
        "device",
        "highest",
        "kept",
        "rise",
        "rises",
        "unchanged",
    )

    def __init__(self, device: Device) -> None:
        self.device = device.info
        self._last_start = 0
        self._last_rise = 0
        self._in_a_row = 0
        # Hits in a row that began with as many bytes more than the one before, at most, and these.
        self.rises = 0
        self.rise = 0
        self.highest = HighestInterval()
        self.delta = 0  # bytes, as ``kept`` over all hits together
        self.kept = 0
        self.approximations = LineApproximations()
        self.unchanged: Sample | None = None

    def add(self, start: Sample, end: Sample, kept: int) -> None:
        """Add an interval by its two readings, and by the bytes that it is known to have kept."""
        # The peaks of the second reading are those in between.
        self.highest.add(start, end)
        delta = end.allocated - start.allocated
        self.delta += delta
        self.kept += max(kept, delta)
        rise = start.allocated - self._last_start
        self._last_start = start.allocated
        if rise != self._last_rise:
            self._last_rise = rise
            self._in_a_row = 0
        self._in_a_row += 1
        if rise > 0 and self._in_a_row > self.rises:
            self.rises, self.rise = self._in_a_row, rise
        # The next interval in which nothing happens begins and ends with this: it adds nothing.
        self.unchanged = end
        if end.approximations is not start.approximations:
            self.approximations.add(start.approximations, end.approximations)


class LineTotals:
    """One line of a function, over all its hits."""

    __slots__ = ("approximations_before_use", "devices", "hits", "on_every_device", "time")

    def __init__(self) -> None:
        self.hits = 0
        self.time = 0.0
        self.on_every_device = False
        self.approximations_before_use = LineApproximations()
        self.devices: dict[str, DeviceLine] = {}

    def on(self, device: Device) -> DeviceLine:
        try:
            return self.devices[device.name]
        except KeyError:
            return self.devices.setdefault(device.name, DeviceLine(device))

    def all_approximations(self) -> Iterator[Approximation]:
        """Those of all devices, none of a line that was never measured."""
        if self.devices or self.on_every_device:
            yield from self.approximations_before_use.all()
            for device in list(self.devices.values()):
                yield from device.approximations.all()

    def entries(
        self,
        code_id: int,
        number: int,
        devices: list[DeviceInfo],
        shared: dict[tuple[object, ...], dict[str, int]],
    ) -> Iterator[LineEntry]:
        """This line as plain data. It used 0 B of devices that it found unused."""
        before = self.approximations_before_use.all()
        for device in devices:
            measured = self.devices.get(device.name)
            key = (code_id, number, device, self.hits, self.time)
            if measured is not None:
                approximations = (*before, *measured.approximations.all())
                if approximations:
                    approximations = merge_approximations(approximations)
                stats = measured.highest.stats(shared)
                kept, delta = mean(measured.kept, self.hits), mean(measured.delta, self.hits)
                sizes = (kept, kept - delta)
                yield LineEntry(*key, *sizes, stats, approximations, measured.rises, measured.rise)
            elif self.on_every_device:
                yield LineEntry(*key, 0, 0, {}, before)


class LineStore:
    """All lines of all functions."""

    def __init__(self, first_device: Callable[[], Device]) -> None:
        self._first_device = first_device  # asked where lines used none
        self._functions: dict[int, dict[int, LineTotals]] = {}
        self._calls: dict[int, CallSites] = {}

    def __len__(self) -> int:
        """The number of lines that have run."""
        return sum(map(len, self._functions.values()))

    def code_ids(self) -> set[int]:
        """The functions of which a line has run."""
        return set(self._functions)

    def calls_of(self, code_id: int) -> CallSites:
        """The places that one function was called from."""
        return self._calls.setdefault(code_id, {})

    def lines_of(self, code_id: int) -> dict[int, LineTotals]:
        """Line number -> line, of one function."""
        return self._functions.setdefault(code_id, {})

    def forget(self, code_id: int) -> None:
        """Drop the lines of one function; frames that run now go on in new ones."""
        self._functions.get(code_id, {}).clear()
        self._calls.get(code_id, {}).clear()

    def clear(self) -> None:
        self._functions.clear()
        self._calls.clear()

    def devices(self) -> list[DeviceInfo]:
        """The devices that lines were measured on, by name; the first one if none was in use."""
        seen: dict[str, DeviceInfo] = {}
        for _, _, line in self._lines():
            for name, measured in line.devices.items():
                seen[name] = measured.device
        if not seen and self._functions:
            first = self._first_device().info
            seen[first.name] = first
        return [seen[name] for name in sorted(seen)]

    def __iter__(self) -> Iterator[LineEntry]:
        return self.entries()

    def entries(self, places: Mapping[int, int] | None = None) -> Iterator[LineEntry]:
        """All lines as plain data; with ``places``, those of its functions, under their places."""
        devices = self.devices()
        shared: dict[tuple[object, ...], dict[str, int]] = {}
        for code_id, number, line in self._lines():
            place = code_id if places is None else places.get(code_id)
            if place is not None:
                yield from line.entries(place, number, devices, shared)

    def has_entries(self) -> bool:
        """True if any line was measured."""
        return any(line.devices or line.on_every_device for _, _, line in self._lines())

    def approximations(self) -> set[ApproximationKey]:
        """All that a simulation approximated in any line."""
        return {
            approximation.key
            for _, _, line in self._lines()
            for approximation in line.all_approximations()
        }

    def _lines(self) -> Iterator[tuple[int, int, LineTotals]]:
        for code_id, lines in list(self._functions.items()):
            for number, line in sorted(lines.items()):
                yield code_id, number, line
