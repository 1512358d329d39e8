"""The loops of a program: which of them contain its steps, and their end before their last item.

Note [Loops that end early]
A trial ends the loops of a program once their iterations repeat, and the program goes on behind
them. The innermost loop around the steps ends when the peaks of its steps repeat; a loop around
it, such as one over epochs, when its own iterations repeat. Each ends where its next iteration
would begin, so no iteration is cut. A loop of a library ends by the flag that the library has for
that. Lightning begins one more epoch before: its first validation splits blocks that the steps
after it take, so that the second one may need more than the first.
"""

from __future__ import annotations

import builtins
import importlib.machinery
import io
import math
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from time import time_ns
from types import CodeType, FrameType
from typing import Any, Final

import torch

from .._common.frames.user_code import is_of_user
from .._common.patching.patches import Patches
from ..simulation.inspect import Machine
from .settled import StepPeaks, repeats
from .watched_source import BRANCH, LOOP, WHILE, calls_within, watched

MOST_ITERATIONS: Final = 8
"""Iterations of a loop around the innermost one, until it ends though they do not repeat."""

_numbers: Final = count(1)


class Loop:
    """A loop of the program that runs now."""

    def __init__(self, frame: FrameType, first: int, last: int, total: int | None) -> None:
        self.filename = frame.f_code.co_filename
        self.first = first
        self.last = last
        self.total = total  # iterations that it has; None if it is not known
        self.iterations = 0  # that have begun
        self.steps = 0  # of optimizers, in all of them
        self.stepped = 0, 0  # the last two iterations with a step
        self.is_ending = False
        self.contains_ended = False  # whether a loop in it was ended
        self.peaks: StepPeaks | None = None  # of its iterations; None before its first step
        self.ends: list[int] = []  # times at which these ended, in microseconds
        self.frame = id(frame)  # a frame itself would keep what the program drops
        self.number = next(_numbers)  # that no other loop has

    @property
    def interval(self) -> int:
        """Iterations from a step to the next one, as it was last; 0 before the first step."""
        before, last = self.stepped
        return last - before

    def is_around(self, frame: FrameType) -> bool:
        return (
            id(frame) == self.frame
            and frame.f_code.co_filename == self.filename
            and self.first <= frame.f_lineno <= self.last
        )


class Loops:
    """The loops of the user's files, from the outermost to the innermost."""

    def __init__(self, machine: Machine, most_iterations: int) -> None:
        self._machine = machine
        self._most_iterations = most_iterations
        self._active: list[Loop] = []
        # how often each was taken after a step: before it there are no gradients and no state
        self._branches: dict[tuple[str, int], int] = {}
        self.unsettled: list[Loop] = []  # those of them whose iterations did not repeat

    def watch(self, patches: Patches) -> None:
        """Let the code of the user's files call this."""
        patches.set(builtins, LOOP, self._items)
        patches.set(builtins, WHILE, self._while)
        patches.set(builtins, BRANCH, self._branch)

        @patches.around(importlib.machinery.SourceFileLoader, "get_code")
        def get_code(original: Callable[..., Any], loader: Any, fullname: str) -> CodeType | None:
            path = loader.get_filename(fullname)
            if is_of_user(path):
                with suppress(OSError, SyntaxError, ValueError), io.open_code(path) as file:
                    return watched(file.read(), path)
            code: CodeType | None = original(loader, fullname)
            return code

    def around(self, frame: FrameType | None) -> list[Loop]:
        """The loops in whose body a frame runs, the outermost first."""
        frames: dict[int, FrameType] = {}
        while frame is not None:
            frames[id(frame)] = frame
            frame = frame.f_back
        loops = [loop for loop in self._active if loop.frame in frames]
        return [loop for loop in loops if loop.is_around(frames[loop.frame])]

    def saw_step(self, loops: Iterable[Loop]) -> None:
        """A step has ended within some loops."""
        for loop in loops:
            loop.steps += 1
            if loop.iterations != loop.stepped[1]:
                loop.stepped = loop.stepped[1], loop.iterations
            if loop.peaks is None:
                loop.peaks = StepPeaks(self._machine)

    def end(self, loops: list[Loop]) -> None:
        """End the innermost of some loops, and each one around it when it repeats."""
        loops[-1].is_ending = True
        for loop in loops[:-1]:
            loop.contains_ended = True

    def unreached(self, times: range = range(1)) -> tuple[str, ...]:
        """The calls of branches that were taken so often, by default never."""
        missed = [place for place, taken in self._branches.items() if taken in times]
        return tuple(
            dict.fromkeys(call for missed_lines in missed for call in calls_within(*missed_lines))
        )

    # What the program calls

    def _items(self, iterable: Any, first: int, last: int) -> Any:
        if torch.compiler.is_compiling() or not _is_main_thread():
            return iterable
        items = iter(iterable)
        total = None
        with suppress(Exception):
            total = len(iterable)
        loop = Loop(sys._getframe(1), first, last, total)
        return _Items(self, items, loop)

    def _while(self, first: int, last: int) -> bool:
        if torch.compiler.is_compiling() or not _is_main_thread():
            return True
        frame = sys._getframe(1)
        for loop in reversed(self._active):
            if (loop.first, loop.last) == (first, last) and loop.is_around(frame):
                return self.goes_on(loop)
        return self.goes_on(Loop(frame, first, last, None))

    def _branch(self, test: Any, first: int, _last: int) -> bool:
        is_taken = bool(test)
        if not torch.compiler.is_compiling() and _is_main_thread():
            frame = sys._getframe(1)
            if any(loop.steps for loop in self.around(frame)):
                place = frame.f_code.co_filename, first
                self._branches[place] = self._branches.get(place, 0) + is_taken
        return is_taken

    def goes_on(self, loop: Loop) -> bool:
        """Begin an iteration, unless the loop is to end."""
        if loop in self._active:
            del self._active[self._active.index(loop) + 1 :]
        else:
            self._active.append(loop)
        if loop.peaks is not None:
            self._end_iteration(loop, loop.peaks)
        if loop.is_ending:
            self.left(loop)
            return False
        loop.iterations += 1
        return True

    def _end_iteration(self, loop: Loop, peaks: StepPeaks) -> None:
        peaks.end_step()
        loop.ends.append(time_ns() // 1000)
        if not loop.contains_ended or loop.is_ending:
            return
        has_settled = repeats(peaks.all)
        if has_settled or len(peaks.all) >= self._most_iterations:
            loop.is_ending = True
            if not has_settled:
                self.unsettled.append(loop)

    def left(self, loop: Loop) -> None:
        if loop in self._active:
            self._active.remove(loop)
        if loop.peaks is not None:
            loop.peaks.close()
            loop.peaks = None


class _Items:
    """The items of a ``for`` loop."""

    def __init__(self, loops: Loops, items: Iterator[Any], loop: Loop) -> None:
        self._loops = loops
        self._items = items
        self._loop = loop

    def __iter__(self) -> _Items:
        return self

    def __next__(self) -> Any:
        if not self._loops.goes_on(self._loop):
            raise StopIteration
        return next(self._items)

    def __del__(self) -> None:
        self._loops.left(self._loop)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


@dataclass(frozen=True, slots=True)
class LibraryLoop:
    """A loop of a library that was asked to end."""

    frame: int  # ``id`` of its frame
    total: int | None  # steps that it has; None if it is not known
    is_last: bool = True  # False where one more of its epochs begins


def stopped_library_loop(
    frame: FrameType | None,  # of the step
    *,
    has_settled: bool,  # its steps repeat, so one more epoch tells whether epochs do
) -> LibraryLoop | None:
    """Ask the library whose loop runs a step to end it; None if there is none."""
    while frame is not None:
        file = frame.f_code.co_filename.replace("\\", "/")
        if file.endswith("transformers/trainer.py"):
            trainer = frame.f_locals.get("self")
            control, arguments = getattr(trainer, "control", None), getattr(trainer, "args", None)
            if control is not None:
                control.should_training_stop = True
                # These would follow after more steps; this makes them follow now.
                control.should_evaluate |= _is_wanted(arguments, "eval_strategy")
                control.should_save |= _is_wanted(arguments, "save_strategy")
                total = getattr(getattr(trainer, "state", None), "max_steps", 0)
                return LibraryLoop(id(frame), total if total > 0 else None)
        if file.endswith(("lightning/pytorch/trainer/trainer.py", _OLD_LIGHTNING)):
            trainer = frame.f_locals.get("self")
            if trainer is not None and hasattr(trainer, "should_stop"):
                trainer.should_stop = True
                is_last = not (has_settled and _ends_one_epoch(trainer))
                return LibraryLoop(id(frame), _steps_of_lightning(trainer), is_last)
        frame = frame.f_back
    return None


def _ends_one_epoch(trainer: Any) -> bool:
    """True if the next epoch begins: the validation of the first one leaves it other blocks."""
    loop = trainer.fit_loop
    is_asked = "on_advance_end" in vars(loop)
    if is_asked or trainer.current_epoch > 0 or not trainer.enable_validation:
        return False
    original = loop.on_advance_end

    def on_advance_end() -> None:
        del loop.on_advance_end
        original()
        trainer.should_stop = False

    loop.on_advance_end = on_advance_end
    return True


def _steps_of_lightning(trainer: Any) -> int | None:
    """The steps of its loop; None for a loop without end, or of several optimizers."""
    if len(getattr(trainer, "optimizers", ())) != 1:
        return None
    total = trainer.estimated_stepping_batches
    return total if isinstance(total, int) and total > 0 else None


_OLD_LIGHTNING: Final = "pytorch_lightning/trainer/trainer.py"


def _is_wanted(arguments: Any, name: str) -> bool:
    strategy = getattr(arguments, name, "no")
    return getattr(strategy, "value", strategy) != "no"


def total_steps(loops: Sequence[Loop]) -> int | None:
    """The steps that some loops have, at most; None if that is not known."""
    totals = [loop.total for loop in loops if loop.total is not None]
    if not loops or len(totals) < len(loops):
        return None
    if len(loops) == 1:  # its first step may come late, such as after a buffer is filled
        [loop], [total] = loops, totals
        return loop.steps + _steps_of(loop, max(total - loop.iterations, 0))
    return _steps_of(loops[-1], math.prod(totals))


def steps_left(loops: Sequence[Loop]) -> int | None:
    """The steps that the innermost of some loops has left; None if that is not known."""
    if not loops or loops[-1].total is None:
        return None
    return _steps_of(loops[-1], max(loops[-1].total - loops[-1].iterations, 0))


def _steps_of(loop: Loop, iterations: int) -> int:
    """The steps in a number of iterations: of several optimizers, or one in several iterations."""
    begun = max(loop.iterations, 1)
    if loop.steps >= begun:
        return iterations * -(-loop.steps // begun)
    return iterations // max(loop.interval, 1)
