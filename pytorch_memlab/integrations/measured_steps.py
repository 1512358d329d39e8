"""The steps of a training that are measured: some of them, after the warm-up."""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

from .._common.quoted import quoted
from .._common.uncaught_errors import uncaught
from ..devices import Device, get_device, simulated_machine
from ..devices.failed_request import observe
from ..errors import HistoryError, UsageError
from ..history.model import Category
from ..scopes import Window, peak_tracker

if TYPE_CHECKING:
    from ..history.holders import PeakHolders
    from ..history.recorder import Recording


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
            self._peaks = {
                name: max(most, sample.value(name)) for name, most in self._peaks.items()
            }

    def result(self) -> StepMemory:
        """The result. This ends the measurement, and gives back all that it took."""
        self.close()
        holders = None
        if self._recording is not None:
            with suppress(HistoryError):  # no block was in use
                holders = self._recording.peak_holders(self._index)
            self._recording.forget()
        return StepMemory(self._device.name, self._peaks, holders)

    def abandon(self) -> None:
        """End it without a result, and give back all that it took."""
        self.close()
        if self._recording is not None:
            self._recording.forget()


ON_CPU: Final = (
    "the training runs on the CPU, and only the memory of GPUs is measured: "
    "`pytorch-memlab run PROGRAM` simulates a GPU"
)


class MeasuredSteps:
    """Counts the steps of a training, and measures those after the warm-up.

    A step is what ends with ``optimizer.step()``. Its batches are measured, and what comes between
    them is not. The names of the arguments are those of ``torch.profiler.schedule``.
    """

    def __init__(self, warmup: int, active: int) -> None:
        for name, value, least in (("warmup", warmup, 0), ("active", active, 1)):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise UsageError(
                    f"{name} is a number of steps from {least} on, not {quoted(value)}"
                )
        self._measured = range(warmup, warmup + active)
        self._done = 0
        self._device: Device | None = None
        self._open: StepMeasurement | None = None
        self.highest: StepMemory | None = None

    def restart(self, device: torch.device) -> None:
        """A training begins."""
        self.abandon()
        self._done = 0
        self.highest = None
        if device.type == "cpu":
            warnings.warn(ON_CPU, stacklevel=3)
        self._device = None if device.type == "cpu" else get_device(device)

    def begin(self) -> None:
        """A batch begins: the first one of a step, or another one."""
        if self._device is None:
            return
        observe()
        if self._open is None and self._done in self._measured:
            self._open = StepMeasurement(self._device)
        if self._open is not None:
            self._open.open()

    def pause(self) -> None:
        """A batch has ended, and its step goes on."""
        if self._open is not None:
            self._open.close()

    def end(self) -> StepMemory | None:
        """A step has ended."""
        self._done += 1
        measurement, self._open = self._open, None
        if measurement is None:
            return None
        found = measurement.result()
        if self.highest is None or _allocated(found) > _allocated(self.highest):
            self.highest = found
        return found

    def finish(self) -> None:
        """The training has ended."""
        self.abandon()
        if self._device is not None and self.highest is None:
            warnings.warn(
                f"no step was measured: the training ended after {self._done}, and the first "
                f"{self._measured.start} are warm-up; warmup=0 measures the first one",
                stacklevel=3,
            )

    def abandon(self) -> None:
        """Measure no more, perhaps within a step."""
        measurement, self._open = self._open, None
        if measurement is not None:
            measurement.abandon()

    def fail(self, error: BaseException) -> None:
        """An error ends the training: explain it if a GPU ran out of memory."""
        # The report asks for what the measurement recorded.
        try:
            uncaught.add(error, is_asked_for=True)
        finally:
            self.abandon()


class StepCallback:
    """A callback that measures steps."""

    _steps: MeasuredSteps

    @property
    def highest(self) -> StepMemory | None:
        """The measured step with the highest peak of allocated bytes; None before the first one."""
        return self._steps.highest


def _allocated(memory: StepMemory) -> int:
    return memory.peaks["allocated_bytes.all.peak"]
