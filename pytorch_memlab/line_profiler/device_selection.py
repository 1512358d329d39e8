"""The devices that one profiler measures on, asked for so often that asking must be cheap."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import partial

import torch

from ..devices import NO_APPROXIMATIONS, Approximations, Device, cuda, find_devices, get_device
from ..records import Approximation, FilesOfRun, PeakShare
from ..scopes import PeakTracker, peak_tracker
from ..simulation.inspect import Machine, active
from .line_store import LineApproximations

Question = tuple[Callable[[], bool], Device]
"""What tells whether a device is in use by now."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """The devices at one moment."""

    machine: object  # the simulation that was on, None without one
    devices: tuple[Device, ...] = ()  # those in use
    # those among them that came into use after the first question about them
    newly_used: frozenset[Device] = frozenset()
    waiting: tuple[Question, ...] = ()  # the others


class DeviceSelection:
    """One target, or every device that the process uses; any thread may ask."""

    # The peaks of devices that are not in use yet are kept while the selection is on.

    now: Callable[[], tuple[Device, ...]]
    """Gives the devices to measure: the very same tuple until they change."""

    def __init__(self, target: int | str | torch.device | None) -> None:
        self._answer = _Answer(machine=self)  # no machine: the first question is still to come
        self._lock = threading.RLock()
        self._measured: dict[Device, None] = {}  # at any time
        self._is_on = False
        self._awaited: tuple[PeakTracker, ...] = ()
        self._trackers: dict[Device, PeakTracker] = {}  # so that they live from call to call
        self._machine: Machine | None = None
        self._first: Device | None = None  # of those that were there when it was on last
        self._approximations_before: dict[Hashable, Approximation] = {}
        self._peaks_before: dict[Device, int] = {}
        self.single_device = False
        self.set_target(target)

    def set_target(self, target: int | str | torch.device | None) -> None:
        """Measure on one device from now on, or on every one that the process uses."""
        self.single_device = target is not None
        if target is None:
            self.now = self._in_use
        else:
            chosen = (get_device(target),)
            self._measured[chosen[0]] = None
            self.now = lambda: chosen

    def tracker(self, device: Device) -> PeakTracker:
        try:
            return self._trackers[device]
        except KeyError:
            return self._trackers.setdefault(device, peak_tracker(device))

    @property
    def newly_used(self) -> frozenset[Device]:
        """Devices that came into use while they were asked for; of a target that is no matter."""
        return frozenset() if self.single_device else self._answer.newly_used

    def approximations_before_use(self) -> Approximations:
        """Data-dependent reads while no device is in use."""
        if not self.single_device:
            for _, device in self._answer.waiting:
                return device.approximations()
        return NO_APPROXIMATIONS

    def begin(self) -> None:
        """Count approximations from now on; devices that come into use keep their peaks."""
        self._is_on = True
        devices = find_devices()
        self._first = devices[0]
        answer, machine = self._answer, active.machine
        self._await_use(answer.waiting if machine is answer.machine else ())
        if machine is not None and machine is not self._machine:
            self._machine = machine
            self._approximations_before.update(_approximations_of(devices))
            shares = {device: device.peak_share() for device in devices}
            self._peaks_before.update(
                {name: share.active for name, share in shares.items() if share}
            )

    def end(self) -> None:
        self._is_on = False
        self._await_use(())

    def _await_use(self, waiting: tuple[Question, ...]) -> None:
        before = self._awaited
        self._awaited = tuple(self.tracker(device) for _, device in waiting if self._is_on)
        for tracker in self._awaited:
            tracker.await_use()
        for tracker in before:
            tracker.stop_awaiting()

    def _in_use(self) -> tuple[Device, ...]:
        answer = self._answer
        if active.machine is answer.machine:
            for is_used, _ in answer.waiting:
                if is_used():
                    return self._ask_again().devices
            return answer.devices
        return self._ask_again().devices

    def _ask_again(self) -> _Answer:
        with self._lock:
            before, machine = self._answer, active.machine
            if machine is not before.machine:
                came, waiting = _sorted_by_use(
                    [(_question(device), device) for device in find_devices()]
                )
                answer = _Answer(machine, came, waiting=waiting)
            else:
                came, waiting = _sorted_by_use(before.waiting)
                if not came:  # another thread was faster
                    return before
                answer = _Answer(
                    machine, before.devices + came, before.newly_used.union(came), waiting
                )
            self._measured.update(dict.fromkeys(came))
            self._answer = answer
            if machine is not before.machine:
                self._await_use(waiting)
            return answer

    def approximations(self) -> tuple[Approximation, ...]:
        """Those of all devices that were ever measured, in profiled lines or elsewhere."""
        sums = LineApproximations()
        sums.add(self._approximations_before, _approximations_of(self.devices()))
        return sums.all()

    def peak_shares(self) -> list[PeakShare]:
        """The highest peak of each device that was ever measured, and how well it is known."""
        # A peak from before the first measurement is left out.
        shares: dict[str, PeakShare] = {}
        for device in self.devices():
            share = device.peak_share()
            if share is None or share.active <= self._peaks_before.get(device, 0):
                continue
            largest = shares.get(device.name)
            if largest is None or share.active > largest.active:
                shares[device.name] = share
        return [shares[name] for name in sorted(shares)]

    def files(self) -> list[FilesOfRun | None]:
        """Files and commands of dry runs, for each device."""
        return [device.files() for device in self.devices()]

    def unmet_assumptions(self) -> tuple[str, ...]:
        """Sizes that the user gave dry runs, and that nothing asked for."""
        devices = self.devices()
        return tuple(
            dict.fromkeys(name for device in devices for name in device.unmet_assumptions())
        )

    @property
    def is_dry_run(self) -> bool:
        """True if the simulation that was measured last computes shapes alone."""
        return self._machine is not None and self._machine.is_dry_run

    def devices(self) -> Iterable[Device]:
        """All devices that were ever measured; the first one if none was in use."""
        return list(self._measured) or [self.first_device()]

    def first_device(self) -> Device:
        """The first device of those that were there last, of a simulation that ended too."""
        for _, device in self._answer.waiting:
            return device
        return self._first or find_devices()[0]

    def forget(self) -> None:
        """Forget the devices that are not measured now, and all that was counted."""
        is_known = self.single_device or self._answer.machine is active.machine
        self._measured = dict.fromkeys(self.now() if is_known else ())
        if not is_known:
            self._answer = _Answer(machine=self)
        self._first = None
        self._trackers.clear()
        self._approximations_before.clear()
        self._peaks_before.clear()
        self._machine = None


def _approximations_of(devices: Iterable[Device]) -> dict[Hashable, Approximation]:
    """Approximations of devices, by keys that differ from device to device."""
    together: dict[Hashable, Approximation] = {}
    for device in devices:
        together.update(device.approximations())
    return together


def _sorted_by_use(
    questions: Iterable[Question],
) -> tuple[tuple[Device, ...], tuple[Question, ...]]:
    """The devices in use, and the questions about the others."""
    asked = [(is_used(), (is_used, device)) for is_used, device in questions]
    used = tuple(device for is_used, (_, device) in asked if is_used)
    return used, tuple(question for is_used, question in asked if not is_used)


def _question(device: Device) -> Callable[[], bool]:
    """A function that tells if a device is in use by now."""
    kind, _, index = device.name.partition(":")
    machine = active.machine
    if machine is not None:
        return machine.known_gpus[int(index)].in_use
    if kind == "cuda" and torch.cuda.is_available():
        return partial(cuda.is_used, int(index))
    return lambda: True
