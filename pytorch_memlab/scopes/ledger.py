"""The one owner of a device's peak counters: any number of windows over them at once.

The allocator has one peak for everybody, and resetting it takes it from the others. So whoever
samples folds the peak into an *epoch* before it resets it. A window begins an epoch; its peak
is the highest of its own epoch and all later ones. When a window ends, what its epoch holds
goes to the epoch before, whose windows were open as well. So a sample costs the same however
many windows are open.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

import numpy as np

from ..devices import NO_APPROXIMATIONS
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
    ledger: Ledger = vars(device).get(_PLACE) or vars(device).setdefault(_PLACE, Ledger(device))
    return ledger


class Window:
    """A stretch of time over one device, with the peaks in it.

    It ends with its object, if not before: an interrupt may come right when it begins.

    Args:
        ledger: that of the device.
        epoch: the one that begins with it.
        start: the reading when it begins.
    """

    __slots__ = ("epoch", "is_open", "ledger", "start")

    def __init__(self, ledger: Ledger, epoch: Epoch, start: Sample) -> None:
        self.ledger = ledger
        self.epoch = epoch
        self.start = start
        self.is_open = True
        epoch.windows.add(id(self))

    def read(self) -> Sample:
        """The counters now, with the peaks since the window began; it stays open."""
        ledger = self.ledger
        with ledger.lock:
            return ledger.since(self.epoch, ledger.take())

    def close(self) -> Sample | None:
        """The counters now, with the peaks since the window began, which ends; None if it has."""
        return self.ledger.close(self)


class _OpenWindow(Window):
    """A window until it ends.

    Only then something has to be done when its object dies: nothing of a window that has ended runs
    there, where Python would swallow an interrupt.
    """

    __slots__ = ()

    def __del__(self) -> None:
        if not sys.is_finalizing() and self.epoch in self.ledger.epochs:
            self.close()


class Ledger:
    """All windows over one device, and the peaks as the program itself would read them.

    Args:
        device: whose peaks are owned while a window is open.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.lock = threading.RLock()
        self.busy = False
        self.epochs: list[Epoch] = []
        self._user: Window | None = None
        self._windows: set[int] = set()
        self._awaiting = 0
        self._before_use: Epoch | None = None
        self._approximations = device.approximations
        self._activity_in = (
            read_activity
            if device.approximations is None
            else self._fingerprint_with_approximations
        )
        self._forget_readings()

    def _forget_readings(self) -> None:
        self._activity: Activity = NEVER
        self._latest = ZERO
        self._rest: Sample | None = self._latest

    def await_use(self) -> None:
        """Lose no peak from now on, while no window is open either, until ``stop_awaiting``.

        So ``open_from_first_use`` is right though the program resets the peaks before.
        """
        with self.lock:
            self._awaiting += 1
            if self._before_use is None:
                self._before_use = Epoch(ZERO)
                if self.epochs:
                    self.epochs.insert(0, self._before_use)
            user_view.install(self)

    def stop_awaiting(self) -> None:
        """One less awaits the first use of the device."""
        with self.lock:
            self._awaiting -= 1
            if not self._awaiting:
                self._before_use = None
                if self._user is None:
                    user_view.remove(self)

    def open(self) -> tuple[Window, Sample]:
        """Begin a window now.

        Returns:
            the window, and the reading at its beginning.
        """
        self.device.attach()
        with self.lock:
            self._own_peaks()
            sample = self.take()
            window = _OpenWindow(self, self._begin(sample), sample)
            self._windows.add(id(window))
            return window, sample

    def open_from_first_use(self, start: Sample) -> Window:
        """A window that began before anything was allocated on the device.

        Only right for a device that came into use after its reader began.

        Args:
            start: the reading at that time.
        """
        self.device.attach()
        with self.lock:
            self._own_peaks()
            window = _OpenWindow(self, self.epochs[0], start)
            self._windows.add(id(window))
            return window

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
            values = row_of(stats)
            approximations = (
                NO_APPROXIMATIONS if self._approximations is None else self._approximations()
            )
            sample = Sample(values, stats["allocated_bytes"]["all"]["current"], approximations)
            # Before the reset, so that an interrupt after it loses no peak.
            self.epochs[-1].fold(values)
            self.device.reset_peaks()
        finally:
            self.busy = False
        self._activity = resting(activity)
        self._latest = sample
        self._rest = None
        return sample

    def _fingerprint_with_approximations(self, stats: Stats) -> Activity:
        """A value may be read, and nothing allocated."""
        approximations = self._approximations
        return (None if approximations is None else approximations(), *read_activity(stats))

    def lap(self, window: Window) -> Sample | None:
        """As ``close``, but the window begins anew; its ``start`` becomes what this returns.

        Args:
            window: of this ledger.

        Returns:
            None where another thread has closed the window.
        """
        with self.lock:
            if not window.is_open:
                return None
            result = sample = self.take()
            epoch = window.epoch
            if epoch is not self.epochs[-1] or len(epoch.windows) > 1:
                result = self.since(epoch, sample)
                self._end(window)
                window.epoch = self._begin(sample)
                window.epoch.windows.add(id(window))
            else:
                highest = epoch.highest()
                if highest is not None:
                    if highest is not sample.values:
                        result = sample.with_peak(highest[PEAK])
                    self.epochs[-2].fold(highest)
                    epoch.begin(sample)
            window.start = result
            return result

    def close(self, window: Window) -> Sample | None:
        """See ``Window.close``. After an interrupt it can be called again."""
        with self.lock:
            if not window.is_open:
                return None
            result = self.since(window.epoch, self.take())
            try:
                self._count_out(window)
            except BaseException:  # an interrupt left it half done
                self._count_out(window)
                raise
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

    def user_resets(self) -> bool:
        """The program resets the peaks: its own window begins anew, all others go on.

        Returns:
            False while nobody owns the peaks: the device is to be reset as well.
        """
        if self._user is None:
            self._keep_before_use()
            return False
        sample = self.take()
        self._end(self._user)
        self._user.epoch = self._begin(sample)
        self._user.epoch.windows.add(id(self._user))
        if not self._windows:
            self._reset_peaks()
            self._release()
        return True

    def _keep_before_use(self) -> None:
        self.busy = True
        try:
            stats = self.device.stats()
        finally:
            self.busy = False
        if stats and self._before_use is not None:
            self._before_use.fold(row_of(stats))

    def _peak_since(self, epoch: Epoch) -> Row:
        epochs = self.epochs
        position = len(epochs) - 1
        peak = epochs[position].peak()
        while epochs[position] is not epoch:
            position -= 1
            peak = np.maximum(peak, epochs[position].peak())
        return peak

    def _begin(self, sample: Sample) -> Epoch:
        epoch = Epoch(sample)
        self.epochs.append(epoch)
        return epoch

    def _count_out(self, window: Window) -> None:
        """A window is over. Each step may be done twice, as after an interrupt."""
        self._windows.discard(id(window))
        self._end(window)
        if not self._windows:
            self._release()
        window.is_open = False
        window.__class__ = Window

    def _end(self, window: Window) -> None:
        epoch = window.epoch
        epoch.windows.discard(id(window))
        if epoch.windows or epoch not in self.epochs[1:]:
            return
        position = self.epochs.index(epoch)
        highest = epoch.highest()
        if highest is not None:
            self.epochs[position - 1].fold(highest)
        del self.epochs[position]

    def _own_peaks(self) -> None:
        """Begin to own the peaks; the program's own peak so far is kept as its first epoch."""
        if self.epochs:
            return
        first = Epoch(self._latest)
        self._user = Window(self, first, self._latest)
        self._user.is_open = False  # nobody closes it
        self.epochs += [first] if self._before_use is None else [self._before_use, first]
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
        if self._user is None or not self.epochs:
            return
        sample = self.take()
        peak = self._peak_since(self._user.epoch)
        if self.device.restore_peaks(nest_peaks(peak)) or bool((peak <= sample.current).all()):
            if not self._awaiting:
                user_view.remove(self)
            self.epochs.clear()
            self._user = None
            self._forget_readings()
