"""The memory and the time of cells of a notebook, and of experiments, which are several cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Usage:
    """Memory of one kind over a cell, in bytes."""

    consumed: int  # used when the cell ended less what was used when it began
    peak: int  # the highest that was used less what was used when it began
    # when the cell ended; of a GPU that of the whole GPU, all processes included, without what the
    # allocator keeps in its segments for later
    used: int

    @property
    def above_end(self) -> int:
        """Bytes that the peak went above what was used when the cell ended."""
        return max(0, self.peak - self.consumed)

    @property
    def overhead(self) -> int:
        """Bytes that the peak went above what was used before the cell and is used after it."""
        return max(0, self.peak - max(0, self.consumed))


@dataclass(frozen=True, slots=True)
class CellReading:
    """The memory and the time of a cell."""

    number: int  # of IPython's prompt
    seconds: float  # without those of measuring
    host: Usage  # resident memory of the process
    gpu: Usage  # allocated memory of the current GPU; zeros without one


class CpuLoad(NamedTuple):
    """Load in percent; 0 over less than 50 ms, for which the kernel's counters are too coarse."""

    mean: float  # of all processors over the whole time
    highest: float  # of the busiest processor over the busiest sample


NOTHING = Usage(0, 0, 0)
NO_CELL = CellReading(0, 0.0, NOTHING, NOTHING)
"""The reading before a cell has ended."""


@dataclass(frozen=True, slots=True)
class GPUState:
    """The memory of one GPU, in bytes."""

    index: int
    allocated: int  # by the program
    free: int  # of the whole GPU, all processes included
    total: int


@dataclass(frozen=True, slots=True)
class MemoryState:
    """Memory at a moment, in bytes."""

    free: int  # that the system could give
    resident: int  # of this process
    gpus: tuple[GPUState, ...]


@dataclass(frozen=True, slots=True)
class FinishedExperiment:
    """A finished experiment."""

    deleted: list[str]
    kept: list[str]  # variables that would have been deleted
    not_found: list[str]  # names to keep that no variable has
    reassigned: list[str]  # variables from before, that cells assigned
    reassigned_are: str  # kept, deleted or restored
    collected: int  # objects in reference cycles, at the end
    uncollectable: int
    start: MemoryState
    end: MemoryState  # before variables were deleted
    after: MemoryState
    seconds: float
    host_has_gpus: bool  # simulated GPUs keep their tensors in the memory of the process


def growth(before: MemoryState, after: MemoryState) -> tuple[int, dict[int, int]]:
    """Bytes that are used more after than before: by the process, and by the index of a GPU."""
    allocated_before = {gpu.index: gpu.allocated for gpu in before.gpus}
    gpus = {gpu.index: gpu.allocated - allocated_before.get(gpu.index, 0) for gpu in after.gpus}
    return after.resident - before.resident, gpus
