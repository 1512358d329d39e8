"""For ``transformers``' Trainer: ``GPUMemoryCallback``."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from transformers import Trainer, TrainerCallback

from .._common.text.quoted import quoted
from ..errors import UsageError
from .measured_steps import Log, MeasuredSteps, StepCallback

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments


class GPUMemoryCallback(StepCallback, TrainerCallback):
    """Logs the memory of training steps with ``Trainer.log``, and explains out-of-memory errors.

    A step is an optimizer step, with all batches whose gradients it accumulates. Evaluation between
    steps is not part of it. Each process measures the GPU that its Trainer uses, ``args.device``;
    as of all logs, the trackers of ``report_to`` get those of the first process.

    Usage: ``trainer.add_callback(GPUMemoryCallback(trainer))``. From then on, ``trainer.train()``
    also explains it if a GPU runs out of memory.

    Args:
        trainer: whose ``log`` gets the figures.
        warmup: steps of each ``train()`` that are not measured.
        active: steps that are measured after them. Each gives an entry of the log.
        every: measure ``active`` steps of each ``every`` ones, as long as the training goes on.
        all_ranks: log also the highest peak of all ranks, and its rank.
        log: gets the metrics of a step and its number in every process, instead of ``Trainer.log``
            in the first one.

    Raises:
        UsageError: ``trainer`` is no Trainer, or there is no such number of steps.
    """

    def __init__(
        self,
        trainer: Trainer,
        *,
        warmup: int = 2,
        active: int = 1,
        every: int | None = None,
        all_ranks: bool = False,
        log: Log | None = None,
    ) -> None:
        if not isinstance(trainer, Trainer):
            raise UsageError(f"trainer is a transformers.Trainer, not {quoted(trainer)}")
        self._steps = MeasuredSteps(warmup, active, every, all_ranks=all_ranks)
        self._log = log
        # A Trainer holds its callbacks: without cycles its memory is freed when it goes.
        self._trainer = weakref.ref(trainer)
        self._patched = vars(trainer).get("train")
        trainer.train = self._train

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Count the steps from here on."""
        self._steps.restart(args.device)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin to measure, if the warm-up is over."""
        self._steps.begin()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Log what was measured."""
        measured = self._steps.end()
        trainer = self._trainer()
        if measured is not None and self._log is not None:
            self._log(measured.metrics(), state.global_step)
        elif measured is not None and trainer is not None:
            # This log must not replace one that is due at this step.
            is_due = control.should_log
            trainer.log(measured.metrics())
            control.should_log = is_due

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Measure no more."""
        self._steps.finish()

    def _train(self, *args: Any, **kwargs: Any) -> Any:
        """``Trainer.train``: the callbacks of a Trainer hear of no error."""
        trainer: Any = self._trainer()
        try:
            if self._patched is not None:
                return self._patched(*args, **kwargs)
            return type(trainer).train(trainer, *args, **kwargs)
        except BaseException as error:
            self._steps.fail(error)
            raise
