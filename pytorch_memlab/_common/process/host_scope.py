"""``HostScope``: the peak of the host's memory over a stretch of code."""

from __future__ import annotations

import threading

from .host_process import HostProcess, host_process
from .made_once import made_once
from .scope import Scope


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
    return HostPeakTracker(host_process())


class HostScope(Scope):
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
        super().__init__()
        self._tracker = host_peak_tracker() if tracker is None else tracker
        self.highest = 0

    def _open(self) -> int:
        self.highest = 0
        return self._tracker.open(self)

    def _restart(self) -> int:
        self._tracker.close(self)
        return self._open()

    def _values(self) -> tuple[int, int]:
        return self._tracker.read(self)

    def _close(self) -> tuple[int, int]:
        values = self._tracker.read(self)
        self._tracker.close(self)
        return values
