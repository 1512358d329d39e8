"""The peaks of all GPUs over a whole run, also outside of profiled lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..devices import find_devices, get_device
from ..memory_fields import FIELDS
from .ledger import ledger_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .ledger import Window
    from .sample import Sample

_PEAKS = [FIELDS.index(f"{kind}_bytes.all.peak") for kind in ("active", "allocated", "reserved")]


class DevicePeaks(NamedTuple):
    """The most that a device held.

    Args:
        active: bytes of blocks in use.
        allocated: bytes that the program held.
        reserved: bytes taken from the device.
    """

    active: int
    allocated: int
    reserved: int


class RunPeaks:
    """Watches the GPUs that there are when it begins; the host is left alone.

    Args:
        device: the only one that is watched; None for all.

    Raises:
        UnknownDeviceError: there is no such device.
    """

    def __init__(self, device: str | None = None) -> None:
        self._device = None if device is None else get_device(device).name
        self._windows: list[Window] = []
        self._highest: dict[str, DevicePeaks] = {}

    def begin(self) -> None:
        """Watch from now on."""
        for device in find_devices():
            if device.name != "cpu" and self._device in (None, device.name):
                self._windows.append(ledger_of(device).open()[0])

    def end(self) -> None:
        """Watch no more; again has no effect."""
        while self._windows:
            window = self._windows.pop()
            sample = window.close()
            if sample is not None:
                self._highest[window.ledger.device.name] = _peaks_of(sample)

    @property
    def highest(self) -> Mapping[str, DevicePeaks]:
        """The peaks so far by the names of the devices."""
        open_now = {one.ledger.device.name: _peaks_of(one.read()) for one in self._windows}
        return {**self._highest, **open_now}


def _peaks_of(sample: Sample) -> DevicePeaks:
    return DevicePeaks(*(int(sample.values[place]) for place in _PEAKS))
