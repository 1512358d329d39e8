"""The devices that one profiler measures on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..devices import NO_APPROXIMATIONS, find_devices, get_device, simulated_machine
from ..devices.in_use import DevicesInUse
from ..scopes import PeakTracker, peak_tracker
from .line_store import LineApproximations

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    import torch

    from ..devices import Approximations, Device
    from ..records import Approximation, PeakShare
    from ..simulation.inspect import Machine


class DeviceSelection:
    """One target, or every device that the process uses."""

    now: Callable[[], tuple[Device, ...]]
    """Gives the devices to measure: the very same tuple until they change."""

    def __init__(self, target: int | str | torch.device | None) -> None:
        self._in_use = DevicesInUse(self._await_use)
        self._is_on = False
        self._awaited: tuple[PeakTracker, ...] = ()
        self._chosen: dict[Device, None] = {}
        self._trackers: dict[Device, PeakTracker] = {}  # so that they live from call to call
        self._machine: Machine | None = None
        self._approximations_before: dict[Hashable, Approximation] = {}
        self.single_device = False
        self.set_target(target)

    def set_target(self, target: int | str | torch.device | None) -> None:
        """Measure on one device from now on, or on every one that the process uses."""
        self.single_device = target is not None
        if target is None:
            self.now = self._in_use.now
        else:
            chosen = (get_device(target),)
            self._chosen[chosen[0]] = None
            self.now = lambda: chosen

    def tracker(self, device: Device) -> PeakTracker:
        try:
            return self._trackers[device]
        except KeyError:
            return self._trackers.setdefault(device, peak_tracker(device))

    @property
    def newly_used(self) -> frozenset[Device]:
        """Devices that came into use while they were asked for; of a target that is no matter."""
        return frozenset() if self.single_device else self._in_use.newly_used

    def approximations_before_use(self) -> Approximations:
        return NO_APPROXIMATIONS if self.single_device else self._in_use.approximations_before_use()

    def begin(self) -> None:
        """Count approximations from now on; devices that come into use keep their peaks."""
        self._is_on = True
        self._await_use(self._in_use.waiting)
        machine = simulated_machine()
        if machine is not None and machine is not self._machine:
            self._machine = machine
            self._approximations_before.update(_approximations_of(find_devices()))

    def end(self) -> None:
        self._is_on = False
        self._await_use(())

    def _await_use(self, devices: tuple[Device, ...]) -> None:
        before = self._awaited
        self._awaited = tuple(map(self.tracker, devices)) if self._is_on else ()
        for tracker in self._awaited:
            tracker.await_use()
        for tracker in before:
            tracker.stop_awaiting()

    def approximations(self) -> tuple[Approximation, ...]:
        """Those of all devices that were ever measured, in profiled lines or elsewhere."""
        sums = LineApproximations()
        sums.add(self._approximations_before, _approximations_of(self.devices()))
        return sums.all()

    def peak_shares(self) -> list[PeakShare]:
        """The highest peak of each device that was ever measured, and how well it is known."""
        shares: dict[str, PeakShare] = {}
        for device in self.devices():
            share = device.peak_share()
            known = shares.get(device.name)
            if share is not None and (known is None or share.active > known.active):
                shares[device.name] = share
        return [shares[name] for name in sorted(shares)]

    def kept_files(self) -> list[tuple[str, ...]]:
        """Paths that dry runs did not write, for each dry run."""
        return list(dict.fromkeys(filter(None, (one.kept_files() for one in self.devices()))))

    @property
    def is_dry_run(self) -> bool:
        """True if the simulation that was measured last computes shapes alone."""
        return self._machine is not None and self._machine.is_dry_run

    def devices(self) -> Iterable[Device]:
        """All devices that were ever measured; the first one if none was in use."""
        return {**self._in_use.seen, **self._chosen} or find_devices()[:1]

    def forget(self) -> None:
        self._in_use.seen.clear()
        self._chosen.clear()
        self._trackers.clear()
        self._approximations_before.clear()
        self._machine = None


def _approximations_of(devices: Iterable[Device]) -> dict[Hashable, Approximation]:
    """Approximations of devices, by keys that differ from device to device."""
    together: dict[Hashable, Approximation] = {}
    for device in devices:
        together.update(device.approximations())
    return together
