"""Scopes over the peaks of a stretch of code or of a whole run, whatever else is measured then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, cast

from .._common.interrupts.uninterrupted import STANDARD_SIGNALS, uninterrupted
from .._common.process.scope import Scope
from ..devices import Device, find_devices, get_device
from .peak_tracker import Window, peak_tracker
from .row import Sample

if TYPE_CHECKING:
    import torch

_PEAK = "allocated_bytes.all.peak"


class PeakScope(Scope):
    """Measures the peak of allocated memory on one device while it is open.

    Any number of scopes may nest and overlap, in any thread. None changes what another one
    measures, or what ``torch.cuda.max_memory_allocated()`` returns in the program. A scope can be
    read while it is open, and keeps its last values when it is closed.

    Args:
        device: index, string, ``torch.device`` or ``Device``; the current one if None.

    Raises:
        UnknownDeviceError: there is no such device.

    >>> import torch
    >>> from pytorch_memlab.simulation import simulate
    >>> with simulate("24GiB"), PeakScope() as outer:
    ...     kept = torch.empty(1024, device="cuda")
    ...     with PeakScope() as inner:
    ...         del kept
    ...         kept = torch.empty(512, device="cuda") + torch.empty(512, device="cuda")
    ...     inner.used_delta, inner.peaked_delta, outer.used_delta, outer.peaked_delta
    (-2048, 2048, 2048, 4096)
    """

    def __init__(self, device: int | str | torch.device | Device | None = None) -> None:
        super().__init__()
        is_device = hasattr(device, "reset_peaks")
        self._device: Device = device if is_device else get_device(device)  # type: ignore[arg-type, assignment]
        self._name = f"{self._device.name}, "
        self._window: Window | None = None

    @property
    def device(self) -> Device:
        """The device that it looks at."""
        return self._device

    def _open(self) -> int:
        self._window, begin = peak_tracker(self._device).open()
        return begin.allocated

    def _restart(self) -> int | None:
        window = cast(Window, self._window)
        sample = window.tracker.restart(window)
        return None if sample is None else sample.allocated

    def _values(self) -> tuple[int, int]:
        return _values_of(cast(Window, self._window).read())

    def _close(self) -> tuple[int, int] | None:
        sample = cast(Window, self._window).close()
        return None if sample is None else _values_of(sample)


def _values_of(sample: Sample) -> tuple[int, int]:
    return sample.allocated, sample.value(_PEAK)


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
        with uninterrupted(*STANDARD_SIGNALS):
            for device in find_devices():
                if device.name != "cpu" and self._device in (None, device.name):
                    self._windows.append(peak_tracker(device).open()[0])

    def end(self) -> None:
        """Watch no more; again has no effect."""
        with uninterrupted(*STANDARD_SIGNALS):
            while self._windows:
                window = self._windows.pop()
                sample = window.close()
                if sample is not None:
                    self._highest[window.tracker.device.name] = _peaks_of(sample)

    @property
    def highest(self) -> Mapping[str, DevicePeaks]:
        """The peaks so far by the names of the devices."""
        open_now = {
            window.tracker.device.name: _peaks_of(window.read()) for window in self._windows
        }
        return {**self._highest, **open_now}


def _peaks_of(sample: Sample) -> DevicePeaks:
    kinds = DevicePeaks._fields
    return DevicePeaks(*(sample.value(f"{kind}_bytes.all.peak") for kind in kinds))
