"""For training loops with ``accelerate``: ``GPUMemoryMonitor``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from accelerate import Accelerator

from .._common.text.quoted import quoted
from ..errors import UsageError
from .measured_steps import Log, MeasuredSteps, StepCallback


class GPUMemoryMonitor(StepCallback):
    """Logs the memory of training steps to the Accelerator's trackers.

    A step is what ends with an optimizer step, with all batches whose gradients it accumulates.
    Each process measures the GPU that it uses, ``accelerator.device``; as of all logs, the trackers
    get those of the main process.

    Args:
        accelerator: whose trackers get the figures.
        warmup: steps that are not measured.
        active: steps that are measured after them. Each gives an entry of the log.
        every: measure ``active`` steps of each ``every`` ones, as long as the training goes on.
        all_ranks: log also the highest peak of all ranks, and its rank.
        log: gets the metrics of a step and its number in every process, instead of the trackers
            in the main one.

    Raises:
        UsageError: ``accelerator`` is no Accelerator, or there is no such number of steps.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        *,
        warmup: int = 2,
        active: int = 1,
        every: int | None = None,
        all_ranks: bool = False,
        log: Log | None = None,
    ) -> None:
        if not isinstance(accelerator, Accelerator):
            raise UsageError(f"accelerator is an accelerate.Accelerator, not {quoted(accelerator)}")
        self._accelerator = accelerator
        self._steps = MeasuredSteps(warmup, active, every, all_ranks=all_ranks)
        self._log = log
        self._steps.restart(accelerator.device)

    @contextmanager
    def batch(self, step: int | None = None) -> Iterator[None]:
        """Around all that is done with one batch, within ``accelerator.accumulate``.

        If a GPU runs out of memory here, a report follows the traceback.

        Args:
            step: as ``accelerator.log`` takes it.
        """
        self._steps.begin()
        try:
            yield
        except BaseException as error:
            self._steps.fail(error)
            raise
        if not self._accelerator.sync_gradients:
            self._steps.pause()
            return
        measured = self._steps.end()
        if measured is not None and self._log is not None:
            self._log(measured.metrics(), self._steps.done if step is None else step)
        elif measured is not None:
            self._accelerator.log(measured.metrics(), step=step)
