"""Texts that the text and the HTML of a report share."""

from __future__ import annotations

from collections.abc import Iterator

from .._common.prose_size import prose_size
from ..utils import readable_size
from .records import SAVED, Reconciliation, TensorRow


def size_text(row: TensorRow) -> str:
    """The lengths of the dimensions, empty for a row that stands for several."""
    return str(row.size) if row.size else ""


def note(row: TensorRow) -> str:
    """The note on a row: the tensor that it views or shares, and the node that saved it.

    >>> import torch
    >>> note(TensorRow("row", torch.device("cpu"), (3,), 3, 0, "base", is_view=True))
    'view of base'
    """
    parts = []
    if row.shares is not None:
        parts.append(f"view of {row.shares}" if row.is_view else f"shares {row.shares}")
    elif row.is_view and row.nbytes:
        parts.append(f"view of {prose_size(row.nbytes)} that no variable holds")
    if row.saved_by is not None and not row.name.startswith("saved by "):
        line = f" ({row.line})" if row.line else ""
        parts.append(f"saved by {row.saved_by}{line}")
    return ", ".join(parts)


def signed(nbytes: float) -> str:
    """A size with its sign.

    >>> signed(1024), signed(-1024)
    ('+1.00K', '-1.00K')
    """
    return f"{'+' if nbytes > 0 else ''}{readable_size(nbytes)}"


def sums(record: Reconciliation) -> Iterator[tuple[str, str, int | None]]:
    """The lines of a reconciliation."""
    yield "", "tensors", record.tensors
    yield "+", SAVED.removeprefix("activations "), record.saved
    yield "+", "rounding", record.rounding
    yield "+", "kernels' workspaces", record.workspaces
    yield "+", "unknown", record.unknown
    yield "=", "allocated", record.allocated
    yield "+", "cached", record.cached
    yield "=", "reserved", record.reserved
    if record.used is not None:
        if record.context is None or record.others is None:
            yield "+", "context and other processes", record.used - record.reserved
        else:
            yield "+", "context", record.context
            yield "+", "other processes", record.others
        yield "=", "used on the device", record.used


def notes(record: Reconciliation) -> tuple[str, ...]:
    """The notes below a reconciliation."""
    if not record.foreign:
        return record.notes
    size = prose_size(record.foreign)
    return (*record.notes, f"{size} of the tensors are memory of another process or library")
