"""Settings of the runs of a program, and the trials and verdicts that follow from them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..simulation.inspect import MemoryOverhead
from .change import Change
from .trial import Trial, TrialRequest
from .verdict import Verdict, verdict

if TYPE_CHECKING:
    from ..simulation.inspect import GPU
    from .target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of the runs of a program."""

    changes: tuple[Change, ...] = ()
    steps: int | None = None  # optimizer steps to run; None for until the peak has settled
    num_gpus: int = 1
    context: int | None = None  # bytes of the CUDA context; None for the estimate of each GPU
    others: int = 0  # bytes that other processes hold
    processes: int | None = None  # most runs at once; None for the number of processors
    output: str = ""  # folder for what the program prints, with a file for each run; empty for none

    def request(
        self,
        target: Target,
        gpu: GPU,
        name: str,
        changes: tuple[Change, ...] = (),
        *,
        is_limited: bool = False,
    ) -> TrialRequest:
        """A trial with further changes, whose output goes to a file of some name."""
        return TrialRequest(
            target,
            gpu,
            (*self.changes, *changes),
            self.steps,
            self.num_gpus,
            is_limited,
            self.context,
            self.others,
            os.path.join(self.output, f"{name}.txt") if self.output else "",
        )

    def verdict(self, trial: Trial, gpu: GPU, name: str) -> Verdict:
        """The verdict of a trial on a GPU."""
        return verdict(trial, gpu, name, self.context, self.others)

    def room(self, gpu: GPU) -> int:
        """Bytes of a GPU that PyTorch can have."""
        taken = MemoryOverhead.of(gpu, self.context, self.others)
        return gpu.total_memory - taken.context - taken.other_processes
