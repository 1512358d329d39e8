"""The optimizer steps that ``run --warmup`` and ``run --steps`` profile."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pytorch_memlab._common.optimizer_steps import is_within_another
from pytorch_memlab.cli.notices import tell


class StepsDone(SystemExit):
    """Ends the program after its last step: a program that handles errors lets it through."""


class Steps:
    """The optimizer steps that are profiled. A step ends when ``optimizer.step()`` ends.

    None stands for no warm-up, and for all steps.
    """

    def __init__(self, warmup: int | None, steps: int | None) -> None:
        warmup = warmup or 0
        self.warmup = warmup
        self._last = None if steps is None else warmup + steps
        self._limits = " ".join(
            f"--{name} {value}" for name, value in (("warmup", warmup), ("steps", steps)) if value
        )
        self._process = os.getpid()
        self.done = 0
        """Steps that have ended so far."""

    @contextmanager
    def counted(self, begin: Callable[[], object], end: Callable[[], object]) -> Iterator[None]:
        """Count steps, and say so if the program ends before the last one.

        ``begin`` is called at once or after the warm-up, ``end`` after the last step.
        """
        from torch.optim.optimizer import register_optimizer_step_post_hook

        def step(*_: object) -> None:
            if os.getpid() == self._process and not is_within_another(sys._getframe(1)):
                self._count(begin, end)

        if not self.warmup:
            begin()
        hook = register_optimizer_step_post_hook(step)
        try:
            yield
        finally:
            hook.remove()
            needed = self.warmup + 1 if self._last is None else self._last
            if self._limits and self.done < needed:
                measured = max(0, self.done - self.warmup)
                tell(
                    f"the program ended after {_steps(self.done)}, before {self._limits} was"
                    f" over: {_steps(measured)} in the numbers"
                )

    def _count(self, begin: Callable[[], object], end: Callable[[], object]) -> None:
        self.done += 1
        if self.done == self.warmup:
            begin()
        if self._last is not None and self.done >= self._last:
            if self.done == self._last:
                end()
                tell(f"ending the program after {_steps(self.done)} ({self._limits})")
            if threading.current_thread() is threading.main_thread():
                raise StepsDone(0)
            raise SystemExit(0)  # a thread ends without a word at this very class only


def _steps(count: int) -> str:
    return f"{count} optimizer step{'s' * (count != 1)}"
