"""The progress of a simulated run, in a terminal.

The program may print too, so each message is a separate line, and they become rarer.
"""

from __future__ import annotations

import _thread
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, repeat
from typing import TYPE_CHECKING

from pytorch_memlab._common.prose_size import prose_size
from pytorch_memlab._common.ranks import prints

if TYPE_CHECKING:
    from pytorch_memlab.simulation.inspect import Machine


@contextmanager
def progress_shown(
    machine: Machine | None,
    steps_done: Callable[[], int],
    seconds: Sequence[float] = (10.0, 20.0, 30.0, 60.0),
) -> Iterator[None]:
    """Show from time to time the progress of a simulated program, if standard error is a terminal.

    Args:
        machine: that the program runs on; None for real GPUs, of which nothing is said.
        steps_done: gives the optimizer steps that have ended.
        seconds: from one message to the next; the last ones are all alike.
    """
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
    _thread.start_new_thread(watch, ())
    try:
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
    count = f"{steps} optimizer step{'s' * (steps != 1)}"
    return f"running for {clock}, {count}, peak so far {prose_size(peak)}"
