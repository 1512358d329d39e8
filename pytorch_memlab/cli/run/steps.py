"""The optimizer steps that ``run --warmup`` and ``run --steps`` profile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pytorch_memlab._common.optimizer_steps import after_each_step, end_program
from pytorch_memlab.cli.notices import tell


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
        self.done = 0
        """Steps that have ended so far."""

    @contextmanager
    def counted(self, begin: Callable[[], object], end: Callable[[], object]) -> Iterator[None]:
        """Count steps, and say so if the program ends before the last one.

        ``begin`` is called at once or after the warm-up, ``end`` after the last step.
        """
        if not self.warmup:
            begin()
        try:
            with after_each_step(lambda _: self._count(begin, end)):
                yield
        finally:
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
            end_program()


def _steps(count: int) -> str:
    return f"{count} optimizer step{'s' * (count != 1)}"
