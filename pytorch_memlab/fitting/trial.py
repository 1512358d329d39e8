"""A trial is a run of a program without values: its request, its settings, what came of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ..history.model import AllocationHistory, Frame
from ..records import (
    SIZES_OF_VALUES,
    Approximation,
    ApproximationKind,
    FilesOfRun,
    mark,
    uncounted_at_most,
)
from ..simulation.inspect import GPU, Communicator, MemoryOverhead
from .change import Change
from .loops import MOST_ITERATIONS
from .settled import (
    MOST_STEPS,
    Repeated,
    StepPeak,
)
from .target import Target


class Ending(Enum):
    """The end of a trial's program, or of its loops."""

    SETTLED = "settled"  # ended as the peak repeated
    STEPS = "steps"  # ended after the steps that were asked for, before the peak repeated
    UNSETTLED = "unsettled"  # ended after many steps, and the peak did not repeat
    FINISHED = "finished"  # it ended by itself
    OUT_OF_MEMORY = "out of memory"  # on a GPU whose memory is limited
    ERROR = "error"  # with another error


@dataclass(frozen=True, slots=True)
class TrialError:
    """The error that a program ended with."""

    message: str  # its type and what it says, such as ``ValueError: no``; of one line or several
    frame: Frame | None  # the innermost line of the program; None if no line of it is known


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The allocations of a program on its GPUs."""

    gpu: GPU
    ending: Ending
    error: str = ""  # the traceback of the program's error; empty without one
    problem: TrialError | None = None  # the same in short
    # every allocation, with its stack; None if no GPU was used or the run failed before the first
    # line
    history: AllocationHistory | None = None
    step_peaks: tuple[StepPeak, ...] = ()
    repeated: tuple[Repeated, ...] = ()  # the loops that ended early though they did not repeat
    unreached: tuple[str, ...] = ()  # the calls that did not run, such as ``evaluate()``
    # the error of what follows the loops that ended early; perhaps they are its reason
    stopped: TrialError | None = None
    # what was not counted (``?``), estimated (``~``) or assumed
    approximations: tuple[Approximation, ...] = ()
    # those of NCCL that the program made, of each GPU
    communicators: tuple[tuple[Communicator, ...], ...] = ()
    # what of the GPU decided what ran: names of properties, as attributes of ``GPU``, and each
    # ``Decision``
    gpu_reads: frozenset[Any] = frozenset()
    is_limited: bool = False  # whether the GPU had its own memory, or never ran out
    unmet: tuple[str, ...] = ()  # sizes that the user gave, and that nothing asked for
    findings: tuple[Any, ...] = ()
    files: FilesOfRun | None = None

    @property
    def asked_for_memory(self) -> bool:
        """True if the program asked how much memory the GPU has."""
        return "total_memory" in self.gpu_reads

    @property
    def failed(self) -> bool:
        """True if the program ended with an error other than out of memory."""
        return self.ending is Ending.ERROR

    @property
    def mark(self) -> str:
        """``*`` for a peak that rests on assumed or given sizes, ``?`` for a lower bound, ``~``."""
        # A value that is assumed, such as that of a loss, decides no size by itself.
        return mark(
            approximation
            for approximation in self.approximations
            if approximation.kind is not ApproximationKind.ASSUMED
        )

    @property
    def needed_at_most(self) -> int:
        """Bytes that are not counted and without which a call may fail, as far as is known."""
        return uncounted_at_most(self.approximations, is_needed=True) or 0

    @property
    def needs_unknown(self) -> bool:
        """True if a call may fail without bytes that are not counted, and no bound is known."""
        return uncounted_at_most(self.approximations, is_needed=True) is None

    @property
    def assumed_at(self) -> tuple[str, ...]:
        """``file:line`` of each line whose sizes were assumed or given."""
        sizes = (
            approximation.place
            for approximation in self.approximations
            if approximation.kind in SIZES_OF_VALUES
        )
        return tuple(dict.fromkeys(sizes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of the runs of a program."""

    steps: int | None = None  # optimizer steps to run; None for until the peak has settled
    least_steps: int = 0  # before it can have settled
    most_steps: int = MOST_STEPS  # for which to wait until it has
    # whether to wait too for branches, such as of every 100th step, that no step has taken
    awaits_branches: bool = True
    most_iterations: int = MOST_ITERATIONS  # of a loop around the steps, as ``most_steps``
    num_gpus: int = 1
    context: int | None = None  # bytes of the CUDA context; None for the estimate of each GPU
    others: int = 0  # bytes that other processes hold
    assume: Mapping[str, str | int | float] | None = None  # sizes that values decide
    output: str = ""  # folder for what the program prints, with a file for each run; empty for none
    allow_writes: bool = False  # whether the runs change files, and start every command
    simulates_for_program: bool = False  # whether simulations that it begins are that of the trial

    def taken(self, gpu: GPU) -> int:
        """Bytes of a GPU that PyTorch cannot have."""
        memory = MemoryOverhead.of(gpu, self.context, self.others)
        return memory.context + memory.other_processes

    def room(self, gpu: GPU) -> int:
        """Bytes of a GPU that PyTorch can have."""
        return gpu.total_memory - self.taken(gpu)


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """A trial to run; plain data, but for the function of a target."""

    target: Target
    gpu: GPU
    settings: Settings
    changes: tuple[Change, ...] = ()
    name: str = "output"  # of the file for what the program prints
    is_limited: bool = False  # whether the GPU has its own memory; otherwise it never runs out
    computes: bool = False  # whether tensors have values

    @property
    def output(self) -> str:
        """The file for what the program prints; empty for none."""
        folder = self.settings.output
        return os.path.join(folder, f"{self.name}.txt") if folder else ""
