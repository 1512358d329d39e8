"""The steps of a training that are measured: some of them, after the warm-up."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from .._common.process.uncaught_errors import uncaught
from .._common.text.quoted import quoted
from ..devices import Device, get_device, simulated_machine
from ..devices.failed_request import observe
from ..errors import HistoryError, UsageError
from ..history.model import Category
from ..scopes import Window, peak_tracker
from .scalars import GROWTH, HEADROOM, ON_CPU, PEAKS, headroom, named, over_ranks

if TYPE_CHECKING:
    from ..history.holders import PeakHolders
    from ..history.recorder import Recording


@dataclass(frozen=True, slots=True)
class StepMemory:
    """The memory of one step."""

    device: str  # name of the GPU, such as ``cuda:0``
    # the highest bytes in the step, by their names in ``torch.cuda.memory_stats()``
    peaks: dict[str, int]
    # what held the memory when the active bytes were highest; None for an accelerator whose
    # allocations are not recorded
    holders: PeakHolders | None
    headroom: int | None = None  # bytes; None for an accelerator that does not tell its size
    # bytes in use at its end
    allocated: int = 0
    # bytes by which it is above that of the last measured step, a step; None for the first one
    growth: int | None = None
    # the highest peak of all ranks, and its rank, if they are asked for
    ranks: Mapping[str, int] = field(default_factory=dict)

    def metrics(self, separator: str = "/") -> dict[str, int]:
        """The metrics for a logger, in bytes."""
        sizes = dict(self.peaks)
        sizes |= {} if self.headroom is None else {HEADROOM: self.headroom}
        sizes |= {} if self.growth is None else {GROWTH: self.growth}
        sizes |= self.ranks
        if self.holders is not None:
            held = {share.name: share.size for share in self.holders.by_category()}
            sizes |= {
                category.value.replace(" ", "_"): held.get(category.value, 0)
                for category in Category
            }
        return named(sizes, separator)


class StepMeasurement:
    """Measures one step, whose batches may have something else between them."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._window: Window | None = None
        self._peaks = dict.fromkeys(PEAKS, 0)
        self._allocated = 0
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
            self._allocated = sample.allocated
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
        room = headroom(self._device, self._peaks["reserved_bytes.all.peak"])
        return StepMemory(self._device.name, self._peaks, holders, room, self._allocated)

    def abandon(self) -> None:
        """End it without a result, and give back all that it took."""
        self.close()
        if self._recording is not None:
            self._recording.forget()


Log = Callable[[dict[str, int], int], object]
"""Takes the metrics of a step, and its number."""


class MeasuredSteps:
    """Counts the steps of a training, and measures some of those after the warm-up."""

    # A step is what ends with ``optimizer.step()``. Its batches are measured, and what comes
    # between them is not. The names of the first arguments are those of
    # ``torch.profiler.schedule``.

    def __init__(
        self, warmup: int, active: int, every: int | None = None, *, all_ranks: bool = False
    ) -> None:
        least = {"warmup": (warmup, 0), "active": (active, 1), "every": (every, 1)}
        for name, (value, lowest) in least.items():
            if name == "every" and value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < lowest:
                raise UsageError(
                    f"{name} is a number of steps from {lowest} on, not {quoted(value)}"
                )
        self._warmup = warmup
        self._active = active
        self._every = every
        self._all_ranks = all_ranks
        self.done = 0  # steps of the training so far
        self._device: Device | None = None
        self._open: StepMeasurement | None = None
        self._last: tuple[int, int] | None = None  # last measured step, bytes at its end
        self.highest: StepMemory | None = None

    def _is_measured(self) -> bool:
        after = self.done - self._warmup
        place = after if self._every is None or after < 0 else after % self._every
        return 0 <= place < self._active

    def restart(self, device: torch.device) -> None:
        """A training begins."""
        self.abandon()
        self.done = 0
        self._last = None
        self.highest = None
        if device.type == "cpu":
            warnings.warn(ON_CPU, stacklevel=3)
        self._device = None if device.type == "cpu" else get_device(device)

    def begin(self) -> None:
        """A batch begins: the first one of a step, or another one."""
        if self._device is None:
            return
        observe()
        if self._open is None and self._is_measured():
            self._open = StepMeasurement(self._device)
        if self._open is not None:
            self._open.open()

    def pause(self) -> None:
        """A batch has ended, and its step goes on."""
        if self._open is not None:
            self._open.close()

    def end(self) -> StepMemory | None:
        """A step has ended."""
        self.done += 1
        measurement, self._open = self._open, None
        if measurement is None:
            return None
        memory = self._compared(measurement.result())
        if self.highest is None or _allocated(memory) > _allocated(self.highest):
            self.highest = memory
        return memory

    def _compared(self, memory: StepMemory) -> StepMemory:
        """The memory of a step beside that of the last measured one, and of other ranks."""
        growth = None
        if self._last is not None:
            step, allocated = self._last
            growth = round((memory.allocated - allocated) / (self.done - step))
        self._last = (self.done, memory.allocated)
        ranks = over_ranks(_allocated(memory)) if self._all_ranks else {}
        return replace(memory, growth=growth, ranks=ranks)

    def finish(self) -> None:
        """The training has ended."""
        self.abandon()
        if self._device is not None and self.highest is None:
            warnings.warn(
                f"no step was measured: the training ended after {self.done}, and the first "
                f"{self._warmup} are warm-up; warmup=0 measures the first one",
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
    _log: Log | None = None  # gets the metrics in every process, instead of the framework's logger

    @property
    def highest(self) -> StepMemory | None:
        """The measured step with the highest peak of allocated bytes; None before the first one."""
        return self._steps.highest


def _allocated(memory: StepMemory) -> int:
    return memory.peaks["allocated_bytes.all.peak"]
