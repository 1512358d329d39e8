"""The memory of this process on the host: resident bytes, and their peak."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Protocol

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
"""Written to ``clear_refs``, this sets the peak of resident memory to the current: proc(5)."""

SAMPLING_SECONDS = 0.005


class HostProcess(Protocol):
    """The source of the numbers of this process."""

    def resident(self) -> int:
        """Resident bytes of the process now."""

    def peak(self) -> int:
        """Highest number of resident bytes since the last reset."""

    def reset_peak(self) -> None:
        """Set the peak to what is resident now."""

    def start_tracking(self) -> None:
        """A reader begins; what costs something starts here."""
        return

    def stop_tracking(self) -> None:
        """The last reader has gone."""
        return


class KernelCounters(HostProcess):
    """Linux: the kernel itself keeps the peak (``VmHWM``), exact and without a thread."""

    # The reset also sets back what ``resource.getrusage`` calls ``ru_maxrss``.

    @staticmethod
    def work_here() -> bool:
        """True if the kernel gives the peak and lets it be reset."""
        with suppress(OSError, LookupError):
            _CLEAR_REFS.write_text(_RESET_PEAK)
            return _field("VmHWM") > 0
        return False

    def resident(self) -> int:
        return _field("VmRSS")

    def peak(self) -> int:
        return _field("VmHWM")

    def reset_peak(self) -> None:
        _CLEAR_REFS.write_text(_RESET_PEAK)


class Sampler(HostProcess):
    """Elsewhere: a thread reads the resident bytes every 5 ms, and can miss what is shorter."""

    def __init__(self) -> None:
        import psutil

        self._process = psutil.Process()
        self._peak = 0
        self._thread: threading.Thread | None = None

    def resident(self) -> int:
        return int(self._process.memory_info().rss)

    def peak(self) -> int:
        self._peak = max(self._peak, self.resident())
        return self._peak

    def reset_peak(self) -> None:
        self._peak = self.resident()

    def start_tracking(self) -> None:
        stop = self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, args=(stop,), daemon=True)
        self._thread.start()

    def stop_tracking(self) -> None:
        """Stop sampling, and wait until the thread has ended."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None

    def _sample(self, stop: threading.Event) -> None:
        while not stop.wait(SAMPLING_SECONDS):
            self._peak = max(self._peak, self.resident())


def host_process() -> HostProcess:
    if sys.platform == "linux" and KernelCounters.work_here():
        return KernelCounters()
    return Sampler()


def _field(name: str) -> int:
    """A size out of ``/proc/self/status``, in bytes."""
    for line in _STATUS.read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"{_STATUS} has no {name}")
