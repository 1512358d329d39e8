"""Ends a trial when the peak of a training loop repeats.

Note [When a peak is settled]
The first optimizer step makes the optimizer's state, so the peak is known after the second one at
the earliest. From the second on, the peaks of the steps are compared: of the bytes that were
requested, as the allocator may serve equal requests by blocks of slightly different sizes. A
program may step several optimizers in turn, so a cycle of some steps may repeat, too. It has
settled when the last cycle equals the one before, took no more memory from the GPU, and every
optimizer that has parameters stepped in it.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from .._common.optimizer_steps import is_within_another

if TYPE_CHECKING:
    from ..simulation.machine import Machine

MOST_STEPS: Final = 24
"""Steps after which a trial gives up waiting for a peak that repeats."""

LONGEST_CYCLE: Final = 8
"""Steps that may make up a cycle."""


@dataclass(frozen=True, slots=True)
class StepPeak:
    """The peaks of one step, over all GPUs of the program.

    Args:
        requested: bytes that the program had requested and not freed, of each GPU.
        reserved: bytes of all segments, of each GPU.
    """

    requested: tuple[int, ...]
    reserved: tuple[int, ...]


class TrialDone(SystemExit):
    """Ends the program of a trial: a program that handles errors lets it through."""


class StepPeaks:
    """The peaks of the steps of a program, from events of the allocators.

    Args:
        machine: the simulated GPUs.
    """

    def __init__(self, machine: Machine) -> None:
        self._gpus = [_GPUPeak() for _ in machine.gpus]
        for gpu, peak in zip(machine.gpus, self._gpus, strict=True):
            gpu.call("observe", peak.happened)
        self.all: list[StepPeak] = []
        """Of each step that has ended."""

    def end_step(self) -> None:
        """A step has ended."""
        ended = [one.end_step() for one in self._gpus]
        self.all.append(
            StepPeak(tuple(one for one, _ in ended), tuple(other for _, other in ended))
        )

    @property
    def has_steps(self) -> bool:
        """Whether any step has ended."""
        return bool(self.all)


class _GPUPeak:
    """The peaks of one GPU since the last step."""

    def __init__(self) -> None:
        self._requested = self._highest_requested = 0
        self._reserved = self._highest_reserved = 0

    def happened(self, action: str, _address: int, size: int, _stream: int) -> None:
        """What the allocator did."""
        if action == "alloc":
            self._requested += size
            if self._requested > self._highest_requested:
                self._highest_requested = self._requested
        elif action == "free_completed":
            self._requested -= size
        elif action in ("segment_alloc", "segment_map"):
            self._reserved += size
            self._highest_reserved = max(self._highest_reserved, self._reserved)
        elif action in ("segment_free", "segment_unmap"):
            self._reserved -= size

    def end_step(self) -> tuple[int, int]:
        """Peaks of requested and of reserved bytes since the step before."""
        peaks = self._highest_requested, self._highest_reserved
        self._highest_requested, self._highest_reserved = self._requested, self._reserved
        return peaks


def cycle_of(peaks: list[StepPeak]) -> int:
    """How many steps make up the cycle that has repeated; 0 if none has.

    Args:
        peaks: of each step, the first one too, which is not compared.

    >>> def steps(*sizes):
    ...     return [StepPeak((size,), (8,)) for size in sizes]
    >>> cycle_of(steps(5, 7)), cycle_of(steps(5, 7, 7)), cycle_of(steps(5, 7, 6, 7, 6))
    (0, 1, 2)
    """
    later = peaks[1:]
    for length in range(1, min(LONGEST_CYCLE, len(later) // 2) + 1):
        last, before = later[-length:], later[-2 * length : -length]
        if [one.requested for one in last] == [one.requested for one in before] and all(
            one.reserved == later[-1].reserved for one in last
        ):
            return length
    return 0


@contextmanager
def stopping(peaks: StepPeaks, steps: int | None, done: Callable[[bool], object]) -> Iterator[None]:
    """End the program when its peak has settled, or after a number of optimizer steps.

    Args:
        peaks: told of each step.
        steps: after how many steps the program ends; None for when its peak has settled.
        done: called once before the program ends, with whether the peak has settled.
    """
    from torch.optim.optimizer import register_optimizer_step_post_hook

    process = os.getpid()
    stepped: dict[int, Any] = {}
    ended = False

    def step(optimizer: Any, *_: object) -> None:
        nonlocal ended
        if os.getpid() != process or is_within_another(sys._getframe(1)):
            return
        if not ended:
            stepped[id(optimizer)] = optimizer
            peaks.end_step()
            cycle = cycle_of(peaks.all)
            has_settled = bool(cycle) and (cycle > 1 or not _others(stepped))
            ended = (
                has_settled or len(peaks.all) >= MOST_STEPS
                if steps is None
                else len(peaks.all) >= steps
            )
            if ended:
                done(has_settled)
        if ended:
            if threading.current_thread() is threading.main_thread():
                raise TrialDone(0)
            raise SystemExit(0)  # a thread ends without a word at this very class only

    hook = register_optimizer_step_post_hook(step)
    try:
        yield
    finally:
        hook.remove()


def _others(stepped: dict[int, Any]) -> bool:
    """Whether there are parameters of optimizers that have not been stepped."""
    from torch.optim import Optimizer

    known = _parameters(stepped.values())
    others = [
        one
        for one in gc.get_objects()
        if issubclass(type(one), Optimizer) and id(one) not in stepped
    ]
    return not _parameters(others) <= known


def _parameters(optimizers: Any) -> set[int]:
    return {
        id(parameter)
        for one in optimizers
        for group in getattr(one, "param_groups", ())
        for parameter in group["params"]
    }
