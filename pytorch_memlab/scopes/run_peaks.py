"""The peaks of all GPUs over a whole run, also outside of profiled lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ..devices import find_devices, get_device
from .peak_tracker import Window, peak_tracker
from .sample import Sample


class DevicePeaks(NamedTuple):
    """The most bytes that a device held."""

    active: int  # of blocks in use
    allocated: int  # that the program held
    reserved: int  # taken from the device


class RunPeaks:
    """Watches one GPU, or all that there are when it begins; the host is left alone."""

    def __init__(self, device: str | None = None) -> None:
        self._device = None if device is None else get_device(device).name
        self._windows: list[Window] = []
        self._highest: dict[str, DevicePeaks] = {}

    def begin(self) -> None:
        for device in find_devices():
            if device.name != "cpu" and self._device in (None, device.name):
                self._windows.append(peak_tracker(device).open()[0])

    def end(self) -> None:
        """Watch no more; again has no effect."""
        while self._windows:
            window = self._windows.pop()
            sample = window.close()
            if sample is not None:
                self._highest[window.tracker.device.name] = _peaks_of(sample)

    @property
    def highest(self) -> Mapping[str, DevicePeaks]:
        """The peaks so far by the names of the devices."""
        open_now = {one.tracker.device.name: _peaks_of(one.read()) for one in self._windows}
        return {**self._highest, **open_now}


def _peaks_of(sample: Sample) -> DevicePeaks:
    kinds = DevicePeaks._fields
    return DevicePeaks(*(sample.value(f"{kind}_bytes.all.peak") for kind in kinds))
