"""Ends a trial when the peak of a training loop repeats.

Note [When a peak is settled]
The first optimizer step makes the optimizer's state, so the peak is known after the second one at
the earliest. From the second on, the peaks of the steps are compared: of the bytes that were
requested, as the allocator may serve equal requests by blocks of slightly different sizes. A
program may step several optimizers in turn, so a cycle of some steps may repeat, too. It has
settled when the last cycle equals the one before, the memory taken from the GPU included, and no
optimizer has parameters that were never stepped. Memory that the steps keep must have been the same
for as many steps as it grew: a cache that doubles grows in rare steps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
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
    left: tuple[int, ...] = field(default=(), compare=False)  # requested bytes at its end


@dataclass(frozen=True, slots=True)
class Repeated:
    """Steps, or iterations of a loop, that ended early though they did not repeat."""

    ends: tuple[int, ...]  # times at which each one ended, in microseconds
    total: int | None  # how many the program has; None if it is not known
    are_steps: bool = True  # of an optimizer
    holder: str = ""  # the variable of a container that has more tensors after each one
    skipped: int | None = None  # those of the program that did not run, in all loops
    skipped_here: int | None = None  # those of them that the innermost loop would have run
    nest: int = 0  # number of the outermost loop that they are in; 0 for none

    def until(self, time: int) -> Repeated:
        """Those that ended before a time."""
        return replace(self, ends=self.ends[: bisect_left(self.ends, time)])


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
        ended = [window.tracker.restart(window) or window.start for window in self._windows]
        requested, reserved = (
            tuple(reading.value(f"{name}_bytes.all.peak") for reading in ended)
            for name in ("requested", "reserved")
        )
        left = tuple(reading.value("requested_bytes.all.current") for reading in ended)
        self.all.append(StepPeak(requested, reserved, left))

    def close(self) -> None:
        for window in self._windows:
            window.close()


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


def repeats(peaks: Sequence[StepPeak]) -> bool:
    """True if the last iterations of an outer loop have the peaks of those before them.

    >>> def iterations(*sizes):
    ...     return [StepPeak((size,), (8,)) for size in sizes]
    >>> repeats(iterations(5, 7)), repeats(iterations(5, 7, 7)), repeats(iterations(7, 6, 7, 6))
    (False, True, True)
    """
    lengths = range(1, min(LONGEST_CYCLE, len(peaks) // 2) + 1)
    return any(peaks[-length:] == peaks[-2 * length : -length] for length in lengths)


def has_stopped_growing(peaks: Sequence[StepPeak]) -> bool:
    """True if no step of the last half left more memory than all before.

    >>> def steps(*sizes):
    ...     return [StepPeak((9,), (9,), (size,)) for size in sizes]
    >>> has_stopped_growing(steps(5, 5, 5)), has_stopped_growing(steps(5, 6, 7, 7))
    (True, False)
    """
    grown = [
        number
        for number in range(1, len(peaks))
        if any(
            now > max(before)
            for now, *before in zip(
                peaks[number].left, *(peak.left for peak in peaks[:number]), strict=True
            )
        )
    ]
    return not grown or len(peaks) >= 2 * (grown[-1] + 1)


def have_others(stepped: Collection[Any]) -> bool:
    """True if some parameters of optimizers are not of those that were stepped."""
    others = [optimizer for optimizer in instances_of(Optimizer) if optimizer not in stepped]
    return not _parameters(others) <= _parameters(stepped)


def _parameters(optimizers: Iterable[Any]) -> set[int]:
    return {
        id(parameter)
        for optimizer in optimizers
        for group in getattr(optimizer, "param_groups", ())
        for parameter in group["params"]
    }
