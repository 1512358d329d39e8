"""The one owner of a device's peak counters: any number of windows over them at once.

The allocator has one peak for everybody, and resetting it takes it from the others. So whoever
samples folds the peak into an *epoch* before it resets it. A window begins an epoch; its peak
is the highest of its own epoch and all later ones. When a window ends, what its epoch holds
goes to the epoch before, whose windows were open as well. So a sample costs the same however
many windows are open.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

import numpy as np

from . import user_view
from .sample import (
    NEVER,
    PEAK,
    ZERO,
    Activity,
    Sample,
    is_ordered,
    nest_peaks,
    read_activity,
    replace_peaks,
    resting,
    row_by_name,
    row_in_order,
)

if TYPE_CHECKING:
    from ..devices import Device, Stats
    from .sample import Row

_ledgers: weakref.WeakKeyDictionary[Device, Ledger] = weakref.WeakKeyDictionary()


def ledger_of(device: Device) -> Ledger:
    """The ledger of a device: always the same one."""
    ledger = _ledgers.get(device)
    if ledger is None:
        ledger = _ledgers[device] = Ledger(device)
    return ledger


class Epoch:
    """A stretch of time between the beginnings of two windows.

    Args:
        peak: the values when it begins, one for each group and pool.
    """

    __slots__ = ("folds", "peak", "windows")

    def __init__(self, peak: Row) -> None:
        self.peak = peak
        self.folds = 0
        self.windows = 1

    def fold(self, peak: Row) -> None:
        """Take peaks over; the first ones since its beginning are never lower than that."""
        self.peak = np.maximum(self.peak, peak) if self.folds else peak
        self.folds += 1


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

    def lap(self) -> Sample:
        """As ``close``, but the window begins anew."""
        return self.ledger.lap(self)

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
        self.reading = False
        self.resetting = False
        self._epochs: list[Epoch] = []
        self._user: Window | None = None
        self._open_windows = 0
        self._forget_readings()

    def _forget_readings(self) -> None:
        self._activity: Activity = NEVER
        self._ordered: bool | None = None
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
        stats = self._stats()
        activity = read_activity(stats) if stats else NEVER
        if activity == self._activity:
            if self._rest is None:
                self._rest = self._latest.at_rest()
            return self._rest
        if self._ordered is None:
            self._ordered = is_ordered(stats)
        sample = Sample(row_in_order(stats) if self._ordered else row_by_name(stats))
        self._epochs[-1].fold(sample.peak)
        self._reset_peaks()
        self._activity = resting(activity)
        self._latest = sample
        self._rest = None
        return sample

    def lap(self, window: Window) -> Sample:
        """See ``Window.lap``."""
        with self.lock:
            sample = self.take()
            epoch = window.epoch
            if epoch is not self._epochs[-1] or epoch.windows > 1:
                result = self.since(epoch, sample)
                self._end(epoch)
                window.epoch = self._begin(sample)
                return result
            if not epoch.folds:
                return sample
            alone = epoch.folds == 1 and sample is self._latest
            result = sample if alone else sample.with_peak(epoch.peak)
            self._epochs[-2].fold(epoch.peak)
            epoch.peak = sample.current
            epoch.folds = 0
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
        peak = np.maximum(self._peak_since(self._user.epoch), row_by_name(stats)[PEAK])
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

    def _stats(self) -> Stats:
        self.reading = True
        try:
            return self.device.stats()
        finally:
            self.reading = False

    def _reset_peaks(self) -> None:
        self.resetting = True
        try:
            self.device.reset_peaks()
        finally:
            self.resetting = False

    def _peak_since(self, epoch: Epoch) -> Row:
        epochs = self._epochs
        position = len(epochs) - 1
        peak = epochs[position].peak
        while epochs[position] is not epoch:
            position -= 1
            peak = np.maximum(peak, epochs[position].peak)
        return peak

    def _begin(self, sample: Sample) -> Epoch:
        epoch = Epoch(sample.current)
        self._epochs.append(epoch)
        return epoch

    def _end(self, epoch: Epoch) -> None:
        epoch.windows -= 1
        first = self._epochs[0]
        if epoch.windows or epoch is first:
            return
        position = self._epochs.index(epoch)
        del self._epochs[position]
        if epoch.folds:
            self._epochs[position - 1].fold(epoch.peak)

    def _own_peaks(self) -> None:
        """Begin to own the peaks; the program's own peak so far is kept as its first epoch."""
        if self._epochs:
            return
        first = Epoch(self._latest.peak)
        self._epochs.append(first)
        self._user = Window(self, first)
        self.take()
        user_view.install(self)

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
