"""The devices that the process uses, asked for so often that asking must be cheap."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..simulation.inspect import active
from . import NO_APPROXIMATIONS, cuda, find_devices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from . import Approximations, Device


@dataclass(frozen=True, slots=True)
class _Answer:
    """The devices at one moment."""

    machine: object  # the simulation that was on, None without one
    devices: tuple[Device, ...] = ()  # those in use
    # those among them that came into use after the first question about them
    newly_used: frozenset[Device] = frozenset()
    # the others, each with what tells whether it is in use by now
    waiting: tuple[tuple[Callable[[], bool], Device], ...] = ()


class DevicesInUse:
    """The devices that the process uses, as they come into use; any thread may ask.

    ``await_use`` gets those that are not in use yet: at the first question, and when a simulation
    begins or ends.
    """

    def __init__(self, await_use: Callable[[tuple[Device, ...]], None]) -> None:
        self._await_use = await_use
        self._answer = _Answer(machine=self)  # no machine: the first question is still to come
        self._lock = threading.RLock()
        self.seen: dict[Device, None] = {}
        """All that were ever in use, in that order."""

    @property
    def newly_used(self) -> frozenset[Device]:
        """Those that came into use after the first question about them."""
        return self._answer.newly_used

    @property
    def waiting(self) -> tuple[Device, ...]:
        """Those that were not in use at the last question; none before the first."""
        answer = self._answer
        if active.machine is not answer.machine:
            return ()
        return tuple(device for _, device in answer.waiting)

    def now(self) -> tuple[Device, ...]:
        """The devices in use: the very same tuple until that changes."""
        answer = self._answer
        if active.machine is answer.machine:
            for is_used, _ in answer.waiting:
                if is_used():
                    return self._ask_again().devices
            return answer.devices
        return self._ask_again().devices

    def approximations_before_use(self) -> Approximations:
        """Approximations of the devices that are not in use: data-dependent reads."""
        for _, device in self._answer.waiting:
            return device.approximations()
        return NO_APPROXIMATIONS

    def _ask_again(self) -> _Answer:
        with self._lock:
            before, machine = self._answer, active.machine
            if machine is not before.machine:
                came, waiting = _sorted_by_use((_question(one), one) for one in find_devices())
                answer = _Answer(machine, tuple(came), waiting=waiting)
            else:
                came, waiting = _sorted_by_use(before.waiting)
                if not came:  # another thread was faster
                    return before
                answer = _Answer(
                    machine, (*before.devices, *came), before.newly_used.union(came), waiting
                )
            self.seen.update(dict.fromkeys(came))
            self._answer = answer
            if machine is not before.machine:
                self._await_use(self.waiting)
            return answer


def _sorted_by_use(
    devices: Iterable[tuple[Callable[[], bool], Device]],
) -> tuple[list[Device], tuple[tuple[Callable[[], bool], Device], ...]]:
    """Those in use, and the others."""
    asked = [(is_used(), is_used, device) for is_used, device in devices]
    return (
        [device for used, _, device in asked if used],
        tuple((is_used, device) for used, is_used, device in asked if not used),
    )


def _question(device: Device) -> Callable[[], bool]:
    """A function that tells if a device is in use by now."""
    kind, _, index = device.name.partition(":")
    machine = active.machine
    if machine is not None:
        return machine.known_gpus[int(index)].in_use
    if kind == "cuda" and torch.cuda.is_available():
        return lambda: cuda.is_used(int(index))
    return lambda: True
