"""Which devices the process uses, asked so often that asking must be cheap."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..simulation import active
from . import NO_GAPS, cuda, find_devices

if TYPE_CHECKING:
    from collections.abc import Callable

    from . import Device, Gaps


class DevicesInUse:
    """The devices that the process uses, as they come into use."""

    def __init__(self) -> None:
        self._asked = False
        self._machine: object = None
        self._devices: tuple[Device, ...] = ()
        self._waiting: list[tuple[Callable[[], bool], Device]] = []
        self.newcomers: set[Device] = set()
        """Those that came into use after the first question about them."""
        self.seen: dict[Device, None] = {}
        """All that were ever in use, in that order."""

    def now(self) -> tuple[Device, ...]:
        """The devices in use.

        Returns:
            the very same tuple until another device comes into use, or a simulation begins or
            ends.
        """
        machine = active.machine
        if machine is not self._machine or not self._asked:
            self._ask_anew(machine)
        elif self._waiting:
            self.newcomers.update(self._admit())
        return self._devices

    def gaps_before_use(self) -> Gaps:
        """What the devices that are not in use did without knowing all of it: reads of values."""
        for _, device in self._waiting:
            return NO_GAPS if device.gaps is None else device.gaps()
        return NO_GAPS

    def _ask_anew(self, machine: object) -> None:
        self._asked = True
        self._machine = machine
        self._devices = ()
        self._waiting = [(_question(device), device) for device in find_devices()]
        self.newcomers.clear()
        self._admit()

    def _admit(self) -> list[Device]:
        came = [device for is_used, device in self._waiting if is_used()]
        if came:
            self._devices += tuple(came)
            self.seen.update(dict.fromkeys(came))
            self._waiting = [pair for pair in self._waiting if pair[1] not in came]
        return came


def _question(device: Device) -> Callable[[], bool]:
    """What tells whether a device is in use by now."""
    kind, _, index = device.name.partition(":")
    machine = active.machine
    if machine is not None:
        return machine.gpus[int(index)].in_use
    if kind == "cuda" and torch.cuda.is_available():
        return lambda: cuda.is_used(int(index))
    return lambda: True
