"""What a cell took: plain data in bytes and seconds."""

from __future__ import annotations

from dataclasses import dataclass

from .._common.prose_size import prose_size


@dataclass(frozen=True, slots=True)
class Usage:
    """Memory of one kind over a cell, in bytes.

    Args:
        consumed: used when the cell ended less what was used when it began.
        peak: the highest that was used during the cell, less what was used when it began.
        used: in use when the cell ended; of a GPU that of the whole card, whoever took it.
    """

    consumed: int
    peak: int
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
    """What a cell took.

    Args:
        number: of the cell, as IPython's prompt has it.
        seconds: that it ran, without what measuring took.
        host: resident memory of the process.
        gpu: allocated memory of the current GPU; zeros without a GPU.
    """

    number: int
    seconds: float
    host: Usage
    gpu: Usage


def last_cell(reading: CellReading) -> str:
    """What the last cell took, behind other words; empty before a cell has ended.

    Args:
        reading: of the cell.

    >>> last_cell(CellReading(3, 0.5, Usage(2**20, 0, 0), Usage(-512, 0, 0)))
    ', In [3] took +1.0 MiB on the host and -512 B on the GPU in 0.500 s'
    """
    if not reading.number:
        return ""
    host, gpu = (
        f"{'-' if usage.consumed < 0 else '+'}{prose_size(abs(usage.consumed))}"
        for usage in (reading.host, reading.gpu)
    )
    seconds = f"{reading.seconds:.3f} s"
    return f", In [{reading.number}] took {host} on the host and {gpu} on the GPU in {seconds}"


NOTHING = Usage(0, 0, 0)
NO_CELL = CellReading(0, 0.0, NOTHING, NOTHING)
"""What is known before a cell has ended."""
