"""``PeakScope``: the peak of a stretch of code, whatever else is measured at the same time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..devices import Device, get_device
from ..errors import UsageError
from .peak_tracker import peak_tracker

if TYPE_CHECKING:
    import torch
    from typing_extensions import Self

    from .peak_tracker import Window
    from .sample import Sample

_PEAK = "allocated_bytes.all.peak"


class PeakScope:
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
        self._device = device if _is_device(device) else get_device(device)  # type: ignore[arg-type]
        self._window: Window | None = None
        self._last: Sample | None = None
        self._start = 0

    @property
    def device(self) -> Device:
        """The device that it looks at."""
        return self._device  # type: ignore[return-value]

    def start(self) -> None:
        """Open the window.

        Raises:
            UsageError: it is open already.
        """
        if self._window is not None:
            raise UsageError("this scope is open: use reset() to begin again")
        self._window, begin = peak_tracker(self.device).open()
        self._start = begin.allocated
        self._last = None

    def stop(self) -> None:
        """Close the window; its values stay. A second stop has no effect."""
        if self._window is not None:
            self._last = self._window.close() or self._last
            self._window = None

    def reset(self) -> None:
        """Start again, as if it had been opened now.

        Raises:
            UsageError: it is not open.
        """
        sample = None if self._window is None else self._window.tracker.restart(self._window)
        if sample is None:
            raise UsageError("this scope is not open: start() it, or use it in a with statement")
        self._start = sample.allocated

    @property
    def peak(self) -> int:
        """Highest number of allocated bytes since it began."""
        return self._read().value(_PEAK)

    @property
    def used(self) -> int:
        """Allocated bytes now, or when it was closed."""
        return self._read().allocated

    @property
    def used_delta(self) -> int:
        """Allocated bytes now, or when it was closed, less those when it began."""
        return self.used - self._start

    @property
    def peaked_delta(self) -> int:
        """Bytes that the peak went above what was used before and is used after.

        The peak less the start, less ``used_delta`` if that is positive: what was needed for a
        while and not kept.
        """
        sample = self._read()
        used_delta = sample.allocated - self._start
        return max(0, sample.value(_PEAK) - self._start - max(0, used_delta))

    def __enter__(self) -> Self:
        """Open the window."""
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        """Close the window."""
        self.stop()

    def __repr__(self) -> str:
        """Values in bytes."""
        if self._window is None and self._last is None:
            return f"PeakScope({self.device.name}, not begun)"
        return (
            f"PeakScope({self.device.name}, peak={self.peak}, used_delta={self.used_delta}, "
            f"peaked_delta={self.peaked_delta})"
        )

    def _read(self) -> Sample:
        if self._window is not None:
            return self._window.read()
        if self._last is None:
            raise UsageError("this scope has not begun: start() it, or use it in a with statement")
        return self._last


def _is_device(device: Any) -> bool:
    return hasattr(device, "reset_peaks")
