"""``HostScope``: the peak of the host's memory over a stretch of code."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from .._common.made_once import made_once
from ..devices.host_process import host_process
from ..errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Self

    from ..devices.host_process import HostProcess


class HostPeakTracker:
    """The one owner of the resets of the process's peak: open scopes keep the peak of before."""

    def __init__(self, process: HostProcess) -> None:
        self._process = process
        self._open: list[HostScope] = []
        self._lock = threading.RLock()

    def open(self, scope: HostScope) -> int:
        """Begin to follow a scope; returns the resident bytes now."""
        with self._lock:
            if not self._open:
                self._process.start_tracking()
            self._merge_peaks()
            self._process.reset_peak()
            self._open.append(scope)
            return self._process.resident()

    def read(self, scope: HostScope) -> tuple[int, int]:
        """Resident bytes now, and the highest number of them since an open scope began."""
        with self._lock:
            self._merge_peaks()
            used = self._process.resident()
            scope.highest = max(scope.highest, used)
            return used, scope.highest

    def close(self, scope: HostScope) -> None:
        """Follow a scope no more."""
        with self._lock:
            self._open.remove(scope)
            if not self._open:
                self._process.stop_tracking()

    def _merge_peaks(self) -> None:
        if self._open:
            peak = self._process.peak()
            for scope in self._open:
                scope.highest = max(scope.highest, peak)


@made_once
def host_peak_tracker() -> HostPeakTracker:
    """The tracker of this process."""
    return HostPeakTracker(host_process())


class HostScope:
    """Measures the peak of the resident memory of the process while it is open.

    Scopes may nest and overlap, in any number and in any thread. On Linux the peak is the
    kernel's own, however short it was; elsewhere a thread takes samples every 5 ms.

    Args:
        tracker: whose numbers it shows; this process' own if None.

    >>> with HostScope() as scope:
    ...     _ = len(bytearray(64 * 2**20))
    >>> abs(scope.peaked_delta - 64 * 2**20) < 2**20
    True
    """

    def __init__(self, tracker: HostPeakTracker | None = None) -> None:
        self._tracker = host_peak_tracker() if tracker is None else tracker
        self._is_open = False
        self._start: int | None = None
        self._last = (0, 0)
        self.highest = 0

    def start(self) -> None:
        """Open the window.

        Raises:
            UsageError: it is open already.
        """
        if self._is_open:
            raise UsageError("this scope is open: use reset() to begin again")
        self.highest = 0
        self._start = self._tracker.open(self)
        self._is_open = True

    def stop(self) -> None:
        """Close the window; its values stay. A second stop has no effect."""
        if self._is_open:
            self._last = self._tracker.read(self)
            self._tracker.close(self)
            self._is_open = False

    def reset(self) -> None:
        """Start again, as if it had been opened now.

        Raises:
            UsageError: it is not open.
        """
        if not self._is_open:
            raise UsageError("this scope is not open: start() it, or use it in a with statement")
        self._tracker.close(self)
        self._is_open = False
        self.start()

    @property
    def used(self) -> int:
        """Resident bytes now, or when it was closed."""
        return self._read()[0]

    @property
    def peak(self) -> int:
        """Highest number of resident bytes since it began."""
        return self._read()[1]

    @property
    def used_delta(self) -> int:
        """Resident bytes now, or when it was closed, less those when it began."""
        return self._read()[0] - self._began()

    @property
    def peaked_delta(self) -> int:
        """Bytes that the peak went above what was resident before and is resident after."""
        used, peak = self._read()
        start = self._began()
        return max(0, peak - start - max(0, used - start))

    def __enter__(self) -> Self:
        """Open the window."""
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        """Close the window."""
        self.stop()

    def __repr__(self) -> str:
        """Values in bytes."""
        if self._start is None:
            return "HostScope(not begun)"
        return (
            f"HostScope(peak={self.peak}, used_delta={self.used_delta}, "
            f"peaked_delta={self.peaked_delta})"
        )

    def _began(self) -> int:
        if self._start is None:
            raise UsageError("this scope has not begun: start() it, or use it in a with statement")
        return self._start

    def _read(self) -> tuple[int, int]:
        self._began()
        return self._tracker.read(self) if self._is_open else self._last
