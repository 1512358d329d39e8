"""Ends a trial when the peak of a training loop repeats.

Note [When a peak is settled]
The first optimizer step makes the optimizer's state, so the peak is known after the second one at
the earliest. From the second on, the peaks of the steps are compared: of the bytes that were
requested, as the allocator may serve equal requests by blocks of slightly different sizes. A
program may step several optimizers in turn, so a cycle of some steps may repeat, too. It has
settled when the last cycle equals the one before, the memory taken from the GPU included, and no
optimizer has parameters that were never stepped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

from torch.optim import Optimizer

from ..simulation.inspect import Machine
from ..tensors.live_objects import instances_of

MOST_STEPS: Final = 24
"""Steps after which a trial gives up waiting for a peak that repeats."""

LONGEST_CYCLE: Final = 8
"""Steps that may make up a cycle."""


@dataclass(frozen=True, slots=True)
class StepPeak:
    """The peaks of one step, over all GPUs of the program."""

    requested: tuple[int, ...]  # bytes that the program had requested and not freed, of each GPU
    reserved: tuple[int, ...]  # bytes of all segments, of each GPU


class StepPeaks:
    """The peaks of the steps of a program, over windows that stay open until its process ends."""

    def __init__(self, machine: Machine) -> None:
        from ..devices import get_device
        from ..scopes import peak_tracker

        self._windows = [
            peak_tracker(get_device(index)).open()[0] for index in range(len(machine.gpus))
        ]
        self.all: list[StepPeak] = []
        """Of each step that has ended."""

    def end_step(self) -> None:
        ended = [one.tracker.restart(one) or one.start for one in self._windows]
        requested, reserved = (
            tuple(one.value(f"{name}_bytes.all.peak") for one in ended)
            for name in ("requested", "reserved")
        )
        self.all.append(StepPeak(requested, reserved))


def cycle_of(peaks: list[StepPeak]) -> int:
    """The number of steps in the cycle that has repeated; 0 if none has.

    >>> def steps(*sizes):
    ...     return [StepPeak((size,), (8,)) for size in sizes]
    >>> cycle_of(steps(5, 7)), cycle_of(steps(5, 7, 7)), cycle_of(steps(5, 7, 6, 7, 6))
    (0, 1, 2)
    """
    later = peaks[1:]
    for length in range(1, min(LONGEST_CYCLE, len(later) // 2) + 1):
        if later[-length:] == later[-2 * length : -length]:
            return length
    return 0


def have_others(stepped: Collection[Any]) -> bool:
    """True if some parameters of optimizers are not of those that were stepped."""
    others = [one for one in instances_of(Optimizer) if one not in stepped]
    return not _parameters(others) <= _parameters(stepped)


def _parameters(optimizers: Iterable[Any]) -> set[int]:
    return {
        id(parameter)
        for one in optimizers
        for group in getattr(one, "param_groups", ())
        for parameter in group["params"]
    }
