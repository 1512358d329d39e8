"""From line events to measured intervals: what happens on every line of a profiled function."""

from __future__ import annotations

import threading
from time import perf_counter
from typing import TYPE_CHECKING

from ..devices import NO_APPROXIMATIONS, find_devices, get_device, simulated_machine
from ..devices.in_use import DevicesInUse
from ..records import Approximation, PeakShare
from ..scopes import ZERO, Sample, ledger_of
from .call_sites import find_call_site
from .line_approximations import LineApproximations
from .line_store import Line

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable
    from types import CodeType

    import torch

    from ..devices import Approximations, Device
    from ..scopes import Ledger, Window
    from ..simulation.inspect import Machine
    from .call_sites import CallSite
    from .line_store import LineStore


class Measured:
    """Which devices the intervals of one profiler are measured on.

    Args:
        target: one device, or None for every device that the process uses.
    """

    now: Callable[[], tuple[Device, ...]]
    """Gives the devices to measure: the very same tuple until they change."""

    def __init__(self, target: int | str | torch.device | None) -> None:
        self._in_use = DevicesInUse(self._await_use)
        self._is_on = False
        self._awaited: tuple[Ledger, ...] = ()
        self._chosen: dict[Device, None] = {}
        self._machine: Machine | None = None
        self._approximations_before: dict[Hashable, Approximation] = {}
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
            self._chosen[chosen[0]] = None
            self.now = lambda: chosen

    @property
    def newcomers(self) -> frozenset[Device]:
        """Devices that came into use while somebody asked; of a chosen one that does not matter."""
        return frozenset() if self.is_narrowed else self._in_use.newcomers

    def approximations_before_use(self) -> Approximations:
        """What was done without knowing all of it while no device is in use."""
        return NO_APPROXIMATIONS if self.is_narrowed else self._in_use.approximations_before_use()

    def begin(self) -> None:
        """From now on, ``approximations`` tells what a simulation does without knowing all of it.

        Until ``end``, devices that come into use keep their peaks of before.
        """
        self._is_on = True
        self._await_use(self._in_use.waiting)
        machine = simulated_machine()
        if machine is not None and machine is not self._machine:
            self._machine = machine
            self._approximations_before.update(_approximations_of(find_devices()))

    def end(self) -> None:
        """Nothing is measured from now on."""
        self._is_on = False
        self._await_use(())

    def _await_use(self, devices: tuple[Device, ...]) -> None:
        before = self._awaited
        self._awaited = tuple(map(ledger_of, devices)) if self._is_on else ()
        for ledger in self._awaited:
            ledger.await_use()
        for ledger in before:
            ledger.stop_awaiting()

    def approximations(self) -> tuple[Approximation, ...]:
        """What all devices that were ever measured did without knowing all of it.

        Whatever was profiled of it, since the beginning; of the first device if none was in use.
        """
        sums = LineApproximations()
        sums.add(self._approximations_before, _approximations_of(self.devices()))
        return sums.all()

    def peak_shares(self) -> list[PeakShare]:
        """How well the peaks of all devices are known that were ever measured.

        Of several simulations the highest peak of each device counts.
        """
        shares: dict[str, PeakShare] = {}
        for device in self.devices():
            share = None if device.peak_share is None else device.peak_share()
            known = shares.get(device.name)
            if share is not None and (known is None or share.active > known.active):
                shares[device.name] = share
        return [shares[name] for name in sorted(shares)]

    def notes(self) -> list[str]:
        """What there is to say of all devices that were ever measured."""
        return list(dict.fromkeys(note for device in self.devices() for note in device.notes()))

    @property
    def is_dry_run(self) -> bool:
        """Whether the simulation that was measured last computes shapes alone."""
        return self._machine is not None and self._machine.is_dry_run

    def devices(self) -> Iterable[Device]:
        """All devices that were ever measured; the first one if none was in use."""
        return {**self._in_use.seen, **self._chosen} or find_devices()[:1]

    def forget(self) -> None:
        """Forget the devices that were measured so far."""
        self._in_use.seen.clear()
        self._chosen.clear()
        self._approximations_before.clear()
        self._machine = None


def _approximations_of(devices: Iterable[Device]) -> dict[Hashable, Approximation]:
    """The approximations of devices by keys that differ from device to device."""
    together: dict[Hashable, Approximation] = {}
    for device in devices:
        together.update({} if device.approximations is None else device.approximations())
    return together


class FunctionIntervals:
    """Listens to the frames of all functions of one profiler.

    Args:
        store: where intervals go.
        measured: the devices.
    """

    def __init__(self, store: LineStore, measured: Measured) -> None:
        self._store = store
        self._measured = measured
        self._ends: dict[tuple[str, int], bool] = {}  # whether tracing began again

    def tracing_ended(self, where: str, thread: int) -> None:
        """Tracing of a thread has ended, for good or until it begins again."""
        self._ends[where, thread] = False

    def tracing_began_again(self, thread: int) -> None:
        """Lines of a thread are traced again."""
        for end in self._ends:
            if end[1] == thread:
                self._ends[end] = True

    def forget_ends(self) -> None:
        """Tell nothing more of where tracing ended so far."""
        self._ends.clear()

    def ends(self) -> list[str]:
        """Where tracing ended, one sentence each."""
        main = threading.main_thread().ident
        sentences = []
        for (where, thread), began_again in self._ends.items():
            tracing, lines = "tracing", "lines"
            if thread != main:
                tracing, lines = "tracing of a thread", "its lines"
            when = "until it began again" if began_again else "later"
            sentences.append(f"{tracing} ended {where}: {lines} that ran {when} are missing")
        return list(dict.fromkeys(sentences))

    def enter(self, code: CodeType, line: int) -> FrameIntervals:
        """A frame of a profiled function begins."""
        site = find_call_site(code, self._store.calls_of(id(code)))
        frame = FrameIntervals(self._store.lines_of(id(code)), self._measured, site)
        frame.resume(max(line, code.co_firstlineno))  # a module begins at line 0
        if code.co_name != "<module>":
            frame.count_call()
        return frame


class _OpenInterval:
    """The open interval of a frame on one device.

    Args:
        device: where it is measured.
        window: over the device; its start is that of the interval.
    """

    __slots__ = ("began", "device", "ledger", "name", "window")

    def __init__(self, device: Device, window: Window) -> None:
        self.began = window.start.allocated  # when the frame began or went on
        self.device = device
        self.name = device.name
        self.ledger = window.ledger
        self.window = window


class FrameIntervals:
    """The intervals of one frame: each from a line event to the frame's next event.

    Args:
        lines: of the function.
        measured: the devices.
        site: where it was called, None if that is not known.
    """

    __slots__ = (
        "_all_lines",
        "_approximations",
        "_began",
        "_called",
        "_devices",
        "_line",
        "_lines",
        "_measured",
        "_open",
        "_site",
    )

    def __init__(
        self, lines: dict[int, Line], measured: Measured, site: CallSite | None = None
    ) -> None:
        self._all_lines = lines
        self._lines = lines
        self._called: Line | None = None
        self._measured = measured
        self._devices: tuple[Device, ...] = ()
        self._open: list[_OpenInterval] = []
        self._line: Line | None = None
        self._began = 0.0
        self._approximations = NO_APPROXIMATIONS
        self._site = site

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
            if not self._open:
                self._end_before_use(current)
            for interval in self._open:
                start = interval.window.start
                end = interval.ledger.lap(interval.window)
                if end is None:  # another thread has ended the profiling
                    continue
                try:
                    record = current.devices[interval.name]
                except KeyError:
                    record = current.on(interval.device)
                if end is not start or end is not record.quiet:
                    record.add(start, end)
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
        self._devices = self._measured.now()
        self._open = [_begin(device) for device in self._devices]
        if not self._open:
            self._approximations = self._measured.approximations_before_use()
        self._line = self._all_lines.setdefault(number, Line())
        self._began = perf_counter()

    def count_call(self) -> None:
        """The ``def`` line is hit once for each call."""
        if self._site is not None:
            self._site.hits += 1
        if self._line is not None:
            self._line.hits += 1
            # The first line event finds no line, which spares the others a test for it.
            self._called, self._lines = self._line, {}

    def leave(self) -> None:
        """The frame stands still or has ended."""
        ended = perf_counter()
        current = self._line
        if current is None:
            return
        current.time += ended - self._began
        self._began = ended
        current.on_every_device = current.on_every_device or not self._measured.is_narrowed
        if self._measured.now() is not self._devices:
            self._change_devices()
        if not self._open:
            self._end_before_use(current)
        # Windows close as they opened, the last one first: that is what costs least.
        # What an interrupt leaves of this, a second call does; two threads may be in here.
        for interval in reversed(self._open.copy()):
            end = interval.window.close()
            if end is not None:
                current.on(interval.device).add(interval.window.start, end)
                if self._site is not None:
                    self._site.add(interval.name, end.allocated - interval.began)
        self._open = []
        self._line = None

    def drop(self) -> int | None:
        """The open interval counts for nothing; returns its line."""
        line, self._line = self._line, None
        if line is None:
            return None
        for interval in reversed(self._open.copy()):
            interval.window.close()
        self._open = []
        return next((number for number, one in self._all_lines.items() if one is line), None)

    def _arrive(self, number: int) -> Line:
        """The line of a call's first line event, or one that was not hit before."""
        self._lines = self._all_lines
        line = self._all_lines.setdefault(number, Line())
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

    def _end_before_use(self, line: Line) -> None:
        """An interval ends in which no device was in use: of reads of values a line says so too."""
        approximations = self._measured.approximations_before_use()
        if approximations is not self._approximations:
            line.approximations_before_use.add(self._approximations, approximations)
            self._approximations = approximations

    def _change_devices(self) -> None:
        """Devices came into use, or another is the target, since the interval began."""
        devices = self._measured.now()
        approximations = (
            self._open[0].window.start.approximations if self._open else self._approximations
        )
        for interval in [one for one in self._open if one.device not in devices]:
            interval.window.close()
            self._open.remove(interval)
        known = {interval.device for interval in self._open}
        newcomers = self._measured.newcomers
        for device in devices:
            if device not in known:
                came = device in newcomers
                self._open.append(
                    _begin_from_first_use(device, approximations) if came else _begin(device)
                )
        self._devices = devices


def _begin(device: Device) -> _OpenInterval:
    return _OpenInterval(device, ledger_of(device).open()[0])


def _begin_from_first_use(device: Device, approximations: Approximations) -> _OpenInterval:
    start = Sample(ZERO.values, ZERO.allocated, approximations)
    return _OpenInterval(device, ledger_of(device).open_from_first_use(start))
