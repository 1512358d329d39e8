"""The calls of ``optimizer.step()`` that are steps of the program, and its end after one."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

from ..interrupts.whole_block import whole_block


class ProgramDone(SystemExit):
    """Ends the program after its last step: a program that handles errors lets it through."""


def end_program() -> NoReturn:
    """End the program, or one of its threads."""
    if threading.current_thread() is threading.main_thread():
        raise ProgramDone(0)
    raise SystemExit(0)  # threading prints any other class, also one derived from it


@whole_block
def after_each_step(ended: Callable[[Any], object]) -> Iterator[None]:
    """Call a function with the optimizer after each step, not in a process that is forked."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    process = os.getpid()

    def step(optimizer: Any, *_: object) -> None:
        if os.getpid() == process and not _is_within_another(sys._getframe(1)):
            ended(optimizer)

    hook = register_optimizer_step_post_hook(step)
    try:
        yield
    finally:
        hook.remove()


def _is_within_another(frame: FrameType) -> bool:
    """True if an optimizer steps as a part of another one, as ZeroRedundancyOptimizer has it."""
    code, outer = frame.f_code, frame.f_back
    while outer is not None:
        if outer.f_code is code:
            return True
        outer = outer.f_back
    return False
