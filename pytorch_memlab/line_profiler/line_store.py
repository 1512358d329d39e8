"""The records of a line profiler: they grow with the number of lines, not of events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..devices import find_devices
from ..records import LineEntry, merge_approximations
from ..scopes import FIELDS, HighestInterval
from .line_approximations import LineApproximations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..devices import Device
    from ..records import DeviceInfo
    from ..scopes import Sample
    from .call_sites import CallSites


class DeviceLine:
    """One line on one device, over all its hits."""

    __slots__ = ("approximations", "delta", "device", "highest", "unchanged")

    def __init__(self, device: Device) -> None:
        self.device = device.info
        self.highest = HighestInterval()
        self.delta = 0
        self.approximations = LineApproximations()
        self.unchanged: Sample | None = None

    def add(self, start: Sample, end: Sample) -> None:
        """Add an interval by its two readings; the peaks of the second are those in between."""
        self.highest.add(start, end)
        self.delta += end.allocated - start.allocated
        # The next interval in which nothing happens begins and ends with this: it adds nothing.
        self.unchanged = end
        if end.approximations is not start.approximations:
            self.approximations.add(start.approximations, end.approximations)


class Line:
    """One line of a function, over all its hits."""

    __slots__ = ("approximations_before_use", "devices", "hits", "on_every_device", "time")

    def __init__(self) -> None:
        self.hits = 0
        self.time = 0.0
        self.on_every_device = False
        self.approximations_before_use = LineApproximations()
        self.devices: dict[str, DeviceLine] = {}

    def on(self, device: Device) -> DeviceLine:
        """This line on a device."""
        try:
            return self.devices[device.name]
        except KeyError:
            return self.devices.setdefault(device.name, DeviceLine(device))

    def entries(self, code_id: int, number: int, devices: list[DeviceInfo]) -> Iterator[LineEntry]:
        """This line as plain data. It used 0 B of devices that it found unused."""
        before = self.approximations_before_use.all()
        for device in devices:
            one = self.devices.get(device.name)
            key = (code_id, number, device, self.hits, self.time)
            if one is not None:
                stats = dict(zip(FIELDS, one.highest.values().tolist(), strict=True))
                stats["temporary"] = one.highest.temporary()
                yield LineEntry(
                    *key,
                    one.delta,
                    stats,
                    merge_approximations((*before, *one.approximations.all())),
                )
            elif self.on_every_device:
                yield LineEntry(*key, 0, {}, before)


class LineStore:
    """All lines of all functions."""

    def __init__(self) -> None:
        self._functions: dict[int, dict[int, Line]] = {}
        self._calls: dict[int, CallSites] = {}

    def calls_of(self, code_id: int) -> CallSites:
        """The places that one function was called from."""
        return self._calls.setdefault(code_id, {})

    def lines_of(self, code_id: int) -> dict[int, Line]:
        """Line number -> line, of one function."""
        return self._functions.setdefault(code_id, {})

    def forget(self, code_id: int) -> None:
        """Drop the lines of one function; frames that run now go on in new ones."""
        self._functions.get(code_id, {}).clear()
        self._calls.get(code_id, {}).clear()

    def clear(self) -> None:
        """Drop everything."""
        self._functions.clear()
        self._calls.clear()

    def devices(self) -> list[DeviceInfo]:
        """The devices that lines were measured on, by name; the first one if none was in use."""
        seen: dict[str, DeviceInfo] = {}
        for _, _, line in self._lines():
            for name, one in line.devices.items():
                seen[name] = one.device
        if not seen and self._functions:
            first = find_devices()[0].info
            seen[first.name] = first
        return [seen[name] for name in sorted(seen)]

    def __contains__(self, entry: object) -> bool:
        """True if a line was recorded just so."""
        return any(one == entry for one in self)

    def __len__(self) -> int:
        """Number of lines, each device counted by itself."""
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[LineEntry]:
        """All lines as plain data."""
        devices = self.devices()
        for code_id, number, line in self._lines():
            yield from line.entries(code_id, number, devices)

    def _lines(self) -> Iterator[tuple[int, int, Line]]:
        for code_id, lines in list(self._functions.items()):
            for number, line in sorted(lines.items()):
                yield code_id, number, line
