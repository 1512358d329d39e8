"""The optimizer steps that ``run`` profiles, and the progress that it shows in a terminal."""

from __future__ import annotations

import _thread
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING

from ..._common.interrupts.whole_block import whole_block
from ..._common.process.ranks import prints
from ..._common.text.prose_size import counted, prose_size
from ..._common.torch.optimizer_steps import after_each_step, end_program
from ..notices import tell

if TYPE_CHECKING:
    from ...simulation.inspect import Machine


_STEP = "optimizer step"


class Steps:
    """The optimizer steps that are profiled. A step ends when ``optimizer.step()`` ends."""

    # None stands for no warm-up, and for all steps.

    def __init__(self, warmup: int | None, steps: int | None) -> None:
        warmup = warmup or 0
        self.warmup = warmup
        self._last = None if steps is None else warmup + steps
        self._limits = " ".join(
            f"--{name} {value}" for name, value in (("warmup", warmup), ("steps", steps)) if value
        )
        self.done = 0
        """Steps that have ended so far."""

    @whole_block
    def counted(self, begin: Callable[[], object], end: Callable[[], object]) -> Iterator[None]:
        """Count steps, and say so if the program ends before the last one."""
        # ``begin`` is called at once or after the warm-up, ``end`` after the last step.
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
                    f"the program ended after {counted(self.done, _STEP)}, before {self._limits}"
                    f" was over: {counted(measured, _STEP)} in the numbers"
                )

    def _count(self, begin: Callable[[], object], end: Callable[[], object]) -> None:
        self.done += 1
        if self.done == self.warmup:
            begin()
        if self._last is not None and self.done >= self._last:
            if self.done == self._last:
                end()
                tell(f"ending the program after {counted(self.done, _STEP)} ({self._limits})")
            end_program()


@whole_block
def progress_shown(
    machine: Machine | None,
    steps_done: Callable[[], int],
    seconds: Sequence[float] = (10.0, 20.0, 30.0, 60.0),
) -> Iterator[None]:
    """Show the progress of a simulated program at times, if standard error is a terminal."""
    # The program may print too, so each message is a separate line, and they become rarer.
    if machine is None or not prints() or sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    console = Console(file=sys.stderr, soft_wrap=True)
    began = time.monotonic()
    over = threading.Event()

    def watch() -> None:
        for wait in chain(seconds, repeat(seconds[-1])):
            if over.wait(wait):
                return
            peak = max(gpu.peak_share()[0] for gpu in machine.gpus)
            text = progress_line(time.monotonic() - began, steps_done(), peak)
            console.print(f"pytorch-memlab: {text}", style="dim", highlight=False, markup=False)

    # A thread of the threading module would be seen by the program, and be simulated.
    try:
        _thread.start_new_thread(watch, ())
        yield
    finally:
        over.set()


def progress_line(elapsed: float, steps: int, peak: int) -> str:
    """The progress of a program: seconds, optimizer steps, and bytes in use at most so far.

    >>> progress_line(83.2, 1, 3 * 2**30)
    'running for 0:01:23, 1 optimizer step, peak so far 3.00 GiB'
    """
    minutes, rest = divmod(int(elapsed), 60)
    clock = f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
    return f"running for {clock}, {counted(steps, _STEP)}, peak so far {prose_size(peak)}"
