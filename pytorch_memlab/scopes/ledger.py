"""The one owner of a device's peak counters: any number of windows over them at once.

The allocator has one peak for everybody, and resetting it takes it from the others. So whoever
samples folds the peak into an *epoch* before it resets it. A window begins an epoch; its peak
is the highest of its own epoch and all later ones. When a window ends, what its epoch holds
goes to the epoch before, whose windows were open as well. So a sample costs the same however
many windows are open.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from ..devices import NO_GAPS
from . import user_view
from .epoch import Epoch
from .sample import (
    NEVER,
    PEAK,
    ZERO,
    Activity,
    Sample,
    nest_peaks,
    read_activity,
    replace_peaks,
    resting,
    row_of,
)

if TYPE_CHECKING:
    from ..devices import Device, Stats
    from .sample import Row

_PLACE = "_ledger"
"""Where a device keeps its ledger: they know each other, and go together."""


def ledger_of(device: Device) -> Ledger:
    """The ledger of a device: always the same one."""
    ledger: Ledger | None = getattr(device, _PLACE, None)
    if ledger is None:
        ledger = Ledger(device)
        setattr(device, _PLACE, ledger)
    return ledger


class Window:
    """A stretch of time over one device, with the peaks in it.

    Args:
        ledger: that of the device.
        epoch: the one that begins with it.
    """

    __slots__ = ("epoch", "ledger")

    def __init__(self, ledger: Ledger, epoch: Epoch) -> None:
        self.ledger = ledger
        self.epoch = epoch

    def read(self) -> Sample:
        """The counters now, with the peaks since the window began; it stays open."""
        ledger = self.ledger
        with ledger.lock:
            return ledger.since(self.epoch, ledger.take())

    def close(self) -> Sample:
        """The counters now, with the peaks since the window began, which ends."""
        return self.ledger.close(self)


class Ledger:
    """All windows over one device, and the peaks as the program itself would read them.

    Args:
        device: whose peaks are owned while a window is open.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.lock = threading.RLock()
        self.busy = False
        self._epochs: list[Epoch] = []
        self._user: Window | None = None
        self._open_windows = 0
        self._gaps = device.gaps
        self._activity_in = read_activity if device.gaps is None else self._activity_with_gaps
        self._forget_readings()

    def _forget_readings(self) -> None:
        self._activity: Activity = NEVER
        self._latest = ZERO
        self._rest: Sample | None = self._latest

    def open(self) -> tuple[Window, Sample]:
        """Begin a window now.

        Returns:
            the window, and the reading at its beginning.
        """
        self.device.attach()
        with self.lock:
            self._own_peaks()
            self._open_windows += 1
            sample = self.take()
            return Window(self, self._begin(sample)), sample

    def open_from_first_use(self) -> Window:
        """A window that began before anything was allocated on the device.

        Only right for a device that came into use after its reader began.
        """
        self.device.attach()
        with self.lock:
            self._own_peaks()
            self._open_windows += 1
            epoch = self._epochs[0]
            epoch.windows += 1
            return Window(self, epoch)

    def take(self) -> Sample:
        """Read the device, with the peaks since the last reading; every open window notes them.

        Returns:
            the very same object as the last time if nothing happened since.
        """
        self.busy = True
        try:
            stats = self.device.stats()
            activity = self._activity_in(stats) if stats else NEVER
            if activity == self._activity:
                if self._rest is None:
                    self._rest = self._latest.at_rest()
                return self._rest
            self.device.reset_peaks()
        finally:
            self.busy = False
        values = row_of(stats)
        gaps = NO_GAPS if self._gaps is None else self._gaps()
        sample = Sample(values, stats["allocated_bytes"]["all"]["current"], gaps)
        self._epochs[-1].fold(values)
        self._activity = resting(activity)
        self._latest = sample
        self._rest = None
        return sample

    def _activity_with_gaps(self, stats: Stats) -> Activity:
        """A value may be read, and nothing allocated."""
        gaps = self._gaps
        return (None if gaps is None else gaps(), *read_activity(stats))

    def lap(self, window: Window) -> Sample:
        """As ``close``, but the window begins anew.

        Args:
            window: of this ledger, open.
        """
        with self.lock:
            sample = self.take()
            epoch = window.epoch
            if epoch is not self._epochs[-1] or epoch.windows > 1:
                result = self.since(epoch, sample)
                self._end(epoch)
                window.epoch = self._begin(sample)
                return result
            highest = epoch.highest()
            if highest is None:
                return sample
            result = sample if highest is sample.values else sample.with_peak(highest[PEAK])
            self._epochs[-2].fold(highest)
            epoch.begin(sample)
            return result

    def close(self, window: Window) -> Sample:
        """See ``Window.close``."""
        with self.lock:
            result = self.since(window.epoch, self.take())
            self._end(window.epoch)
            self._open_windows -= 1
            if not self._open_windows:
                self._release()
        self.device.detach()
        return result

    def since(self, epoch: Epoch, sample: Sample) -> Sample:
        """A sample with the peaks since an epoch began."""
        return sample.with_peak(self._peak_since(epoch))

    def as_user_reads(self, stats: Stats) -> Stats:
        """Counters with the peaks that the program would see if nobody else had reset them.

        Args:
            stats: just read from the device.
        """
        if self._user is None or not stats:
            return stats
        peak = np.maximum(self._peak_since(self._user.epoch), row_of(stats)[PEAK])
        return replace_peaks(stats, peak)

    def user_resets(self) -> None:
        """The program resets the peaks: its own window begins anew, all others go on."""
        if self._user is None:
            return
        sample = self.take()
        self._end(self._user.epoch)
        self._user.epoch = self._begin(sample)
        if not self._open_windows:
            self._reset_peaks()
            self._release()

    def _peak_since(self, epoch: Epoch) -> Row:
        epochs = self._epochs
        position = len(epochs) - 1
        peak = epochs[position].peak()
        while epochs[position] is not epoch:
            position -= 1
            peak = np.maximum(peak, epochs[position].peak())
        return peak

    def _begin(self, sample: Sample) -> Epoch:
        epoch = Epoch(sample)
        self._epochs.append(epoch)
        return epoch

    def _end(self, epoch: Epoch) -> None:
        epoch.windows -= 1
        first = self._epochs[0]
        if epoch.windows or epoch is first:
            return
        position = self._epochs.index(epoch)
        del self._epochs[position]
        highest = epoch.highest()
        if highest is not None:
            self._epochs[position - 1].fold(highest)

    def _own_peaks(self) -> None:
        """Begin to own the peaks; the program's own peak so far is kept as its first epoch."""
        if self._epochs:
            return
        first = Epoch(self._latest)
        self._epochs.append(first)
        self._user = Window(self, first)
        self.take()
        user_view.install(self)

    def _reset_peaks(self) -> None:
        self.busy = True
        try:
            self.device.reset_peaks()
        finally:
            self.busy = False

    def _release(self) -> None:
        """Give the peaks back, if the device lets us; else answer for it until that is needless."""
        if self._user is None:
            return
        sample = self.take()
        peak = self._peak_since(self._user.epoch)
        if self.device.restore_peaks(nest_peaks(peak)) or bool((peak <= sample.current).all()):
            self._epochs.clear()
            self._user = None
            self._forget_readings()
            user_view.remove(self)
