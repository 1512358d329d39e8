"""The steps of a training that are measured: some of them, after the warm-up."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Final

from .._common.quoted import quoted
from .._common.uncaught_errors import uncaught
from ..devices import get_device
from ..devices.failed_request import observe
from ..errors import UsageError
from .step_memory import StepMeasurement

if TYPE_CHECKING:
    import torch

    from ..devices import Device
    from .step_memory import StepMemory

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
