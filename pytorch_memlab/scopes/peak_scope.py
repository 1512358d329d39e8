"""``PeakScope``: the peak of a stretch of code, whatever else is measured at the same time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from ..devices import Device, get_device
from .peak_tracker import peak_tracker
from .scope import Scope

if TYPE_CHECKING:
    import torch

    from .peak_tracker import Window
    from .sample import Sample

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
        self._device: Device = device if _is_device(device) else get_device(device)  # type: ignore[arg-type, assignment]
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
        window = cast("Window", self._window)
        sample = window.tracker.restart(window)
        return None if sample is None else sample.allocated

    def _values(self) -> tuple[int, int]:
        return _values_of(cast("Window", self._window).read())

    def _close(self) -> tuple[int, int] | None:
        sample = cast("Window", self._window).close()
        return None if sample is None else _values_of(sample)


def _values_of(sample: Sample) -> tuple[int, int]:
    return sample.allocated, sample.value(_PEAK)


def _is_device(device: Any) -> bool:
    return hasattr(device, "reset_peaks")
