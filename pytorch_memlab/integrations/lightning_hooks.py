"""Hooks of the callbacks for ``lightning`` and ``pytorch_lightning``, whose classes differ."""

from __future__ import annotations

from typing import Any

from .measured_steps import Log, MeasuredSteps, StepCallback


class LightningHooks(StepCallback):
    """Logs the memory of training steps to Lightning's loggers, explains out-of-memory errors.

    A step is what ends with an optimizer step, with all batches whose gradients it accumulates.
    Validation between batches is not part of it. Each process measures the GPU that its strategy
    uses, ``strategy.root_device``; as of all metrics, the loggers get those of the first process.

    Usage: ``Trainer(callbacks=[GPUMemoryMonitor()])``.

    Args:
        warmup: steps of each ``fit()`` that are not measured.
        active: steps that are measured after them. Each gives an entry of the log.
        every: measure ``active`` steps of each ``every`` ones, as long as the training goes on.
        all_ranks: log also the highest peak of all ranks, and its rank.
        log: gets the metrics of a step and its number in every process, instead of Lightning's
            loggers in the first one.

    Raises:
        UsageError: there is no such number of steps.
    """

    def __init__(
        self,
        *,
        warmup: int = 2,
        active: int = 1,
        every: int | None = None,
        all_ranks: bool = False,
        log: Log | None = None,
    ) -> None:
        super().__init__()
        self._steps = MeasuredSteps(warmup, active, every, all_ranks=all_ranks)
        self._log = log
        self._global_step = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Count the steps from here on."""
        self._steps.restart(trainer.strategy.root_device)

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Begin to measure, if the warm-up is over."""
        self._global_step = trainer.global_step
        self._steps.begin()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log what was measured, if this batch ended a step."""
        if trainer.global_step == self._global_step:
            self._steps.pause()
            return
        measured = self._steps.end()
        if measured is not None:
            # The number that Lightning's own metrics of this batch have.
            loop = trainer.fit_loop.epoch_loop
            number = getattr(loop, "_batches_that_stepped", self._global_step)
            if self._log is not None:
                self._log(measured.metrics(), number)
                return
            for logger in trainer.loggers:
                logger.log_metrics(measured.metrics(logger.group_separator), step=number)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Measure no more: a batch that the module skips has no end."""
        self._steps.pause()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Measure no more."""
        self._steps.finish()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Explain it if a GPU ran out of memory."""
        self._steps.fail(exception)
