"""The text of a memory report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from ..utils import readable_size
from .records import ALLOCATION_UNIT, Reconciliation

LEN = 79
"""Width of a separator, in characters."""

SHARES = "(->"
_NAME, _NAME_AND_SIZE, _MEMORY = 40, 60, 10


def header() -> str:
    """The line above all devices.

    >>> header()
    'Element type                                            Size  Used MEM'
    """
    return line("Element type", "Size", "Used MEM")


def line(name: str, size: str, memory: str) -> str:
    """Three columns; a long name takes the room of the size.

    >>> line("weight", "(1024, 1024)", "4.00M")
    'weight                                          (1024, 1024)     4.00M'
    """
    left = f"{name:<{_NAME}s}"
    if len(name) > _NAME:
        left += " "
    return f"{left}{size:>{max(0, _NAME_AND_SIZE - len(left))}s}{memory:>{_MEMORY}s}"


def section(
    device: torch.device,
    stats: Sequence[tuple[str, tuple[object, ...], int, int]],
    verbose: bool,
    record: Reconciliation | None,
    graph: bool,
) -> Iterator[str]:
    """The lines of one device."""
    yield "-" * LEN
    yield f"Storage on {device}"
    for name, size, _, memory in stats:
        shown = name if verbose else name.split(SHARES)[0]
        yield line(shown, str(size) if size else "", readable_size(memory))
    yield "-" * LEN
    numel = sum(row[2] for row in stats)
    used = sum(row[3] for row in stats)
    yield f"Total Tensors: {numel} \tUsed Memory: {readable_size(used)}".expandtabs()
    if record is not None:
        yield f"The allocated memory on {device}: {readable_size(record.allocated)}"
        if record.workspaces:
            yield f"Kernels' workspaces on {device}: {readable_size(record.workspaces)}"
        if record.allocated != used + _rounded(record.workspaces):
            buffers = " or invisible gradient buffer tensors" if graph and record.unknown else ""
            yield f"Memory differs due to the matrix alignment{buffers}"
    yield "-" * LEN


def _rounded(nbytes: int) -> int:
    return -(-nbytes // ALLOCATION_UNIT) * ALLOCATION_UNIT
