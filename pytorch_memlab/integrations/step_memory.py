"""The memory of one step of a training: peaks of the allocator, and what holds the memory then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..devices import simulated_machine
from ..errors import HistoryError
from ..history.category import Category
from ..scopes import peak_tracker

if TYPE_CHECKING:
    from ..devices import Device
    from ..history.holders import PeakHolders
    from ..history.recorder import Recording
    from ..scopes import Window

PEAKS: Final = ("allocated_bytes.all.peak", "reserved_bytes.all.peak", "active_bytes.all.peak")
"""The counters that are logged, by their names in ``torch.cuda.memory_stats()``."""


@dataclass(frozen=True, slots=True)
class StepMemory:
    """The memory of one step."""

    device: str  # name of the GPU, such as ``cuda:0``
    # the highest bytes in the step, by their names in ``torch.cuda.memory_stats()``
    peaks: dict[str, int]
    # what held the memory when the active bytes were highest; None for an accelerator whose
    # allocations are not recorded
    holders: PeakHolders | None

    def metrics(self, separator: str = "/") -> dict[str, int]:
        """The metrics for a logger, in bytes."""
        sizes = dict(self.peaks)
        if self.holders is not None:
            held = {share.name: share.size for share in self.holders.by_category()}
            sizes |= {one.value.replace(" ", "_"): held.get(one.value, 0) for one in Category}
        return {f"memory{separator}{name}": size for name, size in sizes.items()}


class StepMeasurement:
    """Measures one step, whose batches may have something else between them."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._window: Window | None = None
        self._peaks = dict.fromkeys(PEAKS, 0)
        kind, _, index = device.name.partition(":")
        self._index = int(index or 0)
        self._recording: Recording | None = None
        if kind == "cuda":
            from ..history.recorder import Recording

            is_real = simulated_machine() is None
            self._recording = Recording(self._index, history=is_real)

    def open(self) -> None:
        """Measure from now on."""
        if self._window is None:
            if self._recording is not None:
                self._recording.begin()
            self._window, _ = peak_tracker(self._device).open()

    def close(self) -> None:
        """Measure no more, until ``open``."""
        window, self._window = self._window, None
        sample = None if window is None else window.close()
        if self._recording is not None:
            self._recording.end()
        if sample is not None:
            for name in PEAKS:
                value = sample.value(name)
                self._peaks[name] = max(self._peaks[name], value)

    def result(self) -> StepMemory:
        """The result. This ends the measurement, and gives back all that it took."""
        self.close()
        holders = None
        if self._recording is not None:
            try:
                holders = self._recording.peak_holders(self._index)
            except HistoryError:  # no block was in use
                holders = None
            self._recording.forget()
        return StepMemory(self._device.name, self._peaks, holders)

    def abandon(self) -> None:
        """End it without a result, and give back all that it took."""
        self.close()
        if self._recording is not None:
            self._recording.forget()
