"""The memory and the time of a cell: plain data in bytes and seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Usage:
    """Memory of one kind over a cell, in bytes."""

    consumed: int  # used when the cell ended less what was used when it began
    peak: int  # the highest that was used less what was used when it began
    used: int  # when the cell ended; of a GPU that of the whole GPU, all processes included

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


NOTHING = Usage(0, 0, 0)
NO_CELL = CellReading(0, 0.0, NOTHING, NOTHING)
"""The reading before a cell has ended."""
