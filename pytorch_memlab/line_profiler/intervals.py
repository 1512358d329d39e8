"""From line events to measured intervals: what happens on every line of a profiled function."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from ..devices import get_device
from ..devices.in_use import DevicesInUse
from ..scopes import ZERO, ledger_of
from .line_store import Line

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

    import torch

    from ..devices import Device
    from ..scopes import Sample, Window
    from .line_store import LineStore


class Measured:
    """Which devices the intervals of one profiler are measured on.

    Args:
        target: one device, or None for every device that the process uses.
    """

    now: Callable[[], tuple[Device, ...]]
    """Gives the devices to measure: the very same tuple until they change."""

    def __init__(self, target: int | str | torch.device | None) -> None:
        self._in_use = DevicesInUse()
        self.is_narrowed = False
        self.aim(target)

    def aim(self, target: int | str | torch.device | None) -> None:
        """Measure on another device from now on.

        Args:
            target: one device, or None for every device that the process uses.

        Raises:
            UnknownDeviceError: there is no such device.
        """
        self.is_narrowed = target is not None
        if target is None:
            self.now = self._in_use.now
        else:
            chosen = (get_device(target),)
            self.now = lambda: chosen

    @property
    def newcomers(self) -> set[Device]:
        """Devices that came into use while somebody asked; of a chosen one that does not matter."""
        return set() if self.is_narrowed else self._in_use.newcomers


class FunctionIntervals:
    """Listens to the frames of all functions of one profiler.

    Args:
        store: where intervals go.
        measured: the devices.
    """

    def __init__(self, store: LineStore, measured: Measured) -> None:
        self._store = store
        self._measured = measured

    def enter(self, code: CodeType, line: int) -> FrameIntervals:
        """A frame of a profiled function begins."""
        frame = FrameIntervals(self._store.lines_of(id(code)), self._measured)
        frame.resume(line)
        frame.count_call()
        return frame


class _OpenInterval:
    """The open interval of a frame on one device.

    Args:
        device: where it is measured.
        window: over the device.
        start: the reading when the interval began.
    """

    __slots__ = ("device", "ledger", "name", "start", "window")

    def __init__(self, device: Device, window: Window, start: Sample) -> None:
        self.device = device
        self.name = device.name
        self.ledger = window.ledger
        self.window = window
        self.start = start


class FrameIntervals:
    """The intervals of one frame: each from a line event to the frame's next event.

    Args:
        lines: of the function.
        measured: the devices.
    """

    __slots__ = ("_began", "_devices", "_line", "_lines", "_measured", "_open")

    def __init__(self, lines: dict[int, Line], measured: Measured) -> None:
        self._lines = lines
        self._measured = measured
        self._devices: tuple[Device, ...] = ()
        self._open: list[_OpenInterval] = []
        self._line: Line | None = None
        self._began = 0.0

    def line(self, number: int) -> None:
        """The frame arrived at a line."""
        # This runs at every line of a profiled function: what it saves in calls, the user gains.
        ended = perf_counter()
        current = self._line
        if current is not None:
            current.time += ended - self._began
            measured = self._measured
            if not measured.is_narrowed:
                current.on_every_device = True
            if measured.now() is not self._devices:
                self._change_devices()
            for interval in self._open:
                start = interval.start
                end = interval.start = interval.ledger.lap(interval.window)
                try:
                    record = current.devices[interval.name]
                except KeyError:
                    record = current.on(interval.device)
                if end is not start or end is not record.quiet:
                    record.add(start, end)
        try:
            line = self._lines[number]
        except KeyError:
            line = self._lines.setdefault(number, Line())
        line.hits += 1
        self._line = line
        self._began = perf_counter()

    def resume(self, number: int) -> None:
        """The frame goes on in the middle of a line, or begins at its ``def``."""
        self.leave()
        self._devices = self._measured.now()
        self._open = [_begin(device) for device in self._devices]
        self._line = self._lines.setdefault(number, Line())
        self._began = perf_counter()

    def count_call(self) -> None:
        """The ``def`` line is hit once for each call."""
        if self._line is not None:
            self._line.hits += 1

    def leave(self) -> None:
        """The frame stands still or has ended."""
        ended = perf_counter()
        current, self._line = self._line, None
        if current is None:
            return
        current.time += ended - self._began
        current.on_every_device = current.on_every_device or not self._measured.is_narrowed
        if self._measured.now() is not self._devices:
            self._change_devices()
        # Windows close as they opened, the last one first: that is what costs least.
        while self._open:
            interval = self._open.pop()
            current.on(interval.device).add(interval.start, interval.window.close())
        self._devices = ()

    def _change_devices(self) -> None:
        """Devices came into use, or another is the target, since the interval began."""
        devices = self._measured.now()
        for interval in [one for one in self._open if one.device not in devices]:
            interval.window.close()
            self._open.remove(interval)
        known = {interval.device for interval in self._open}
        newcomers = self._measured.newcomers
        for device in devices:
            if device not in known:
                begin = _begin_from_first_use if device in newcomers else _begin
                self._open.append(begin(device))
        self._devices = devices


def _begin(device: Device) -> _OpenInterval:
    window, start = ledger_of(device).open()
    return _OpenInterval(device, window, start)


def _begin_from_first_use(device: Device) -> _OpenInterval:
    return _OpenInterval(device, ledger_of(device).open_from_first_use(), ZERO)
