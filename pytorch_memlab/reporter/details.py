"""The detailed text of a report: categories with their sums, and where every byte went."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..utils import readable_size
from .cells import note, notes, size_text, sums
from .records import CATEGORIES, Reconciliation, TensorRow
from .text import LEN, line

if TYPE_CHECKING:
    import torch

    from .snapshot import MemorySnapshot

_INDENT = "  "


def render(snapshot: MemorySnapshot) -> str:
    """A snapshot as text."""
    lines = [part for device in snapshot.devices() for part in _device(snapshot, device)]
    return "\n".join(lines or ["no tensors"])


def _device(snapshot: MemorySnapshot, device: torch.device) -> Iterator[str]:
    description = dict(snapshot.descriptions).get(str(device))
    yield "=" * LEN
    yield f"{device}: {description}" if description else str(device)
    yield "-" * LEN
    totals = snapshot.totals(device)
    for category in CATEGORIES:
        rows = [row for row in snapshot.rows if row.device == device and row.category == category]
        if rows:
            yield line(category, "", readable_size(totals[category]))
            yield from map(_row, rows)
    for record in snapshot.reconciliations:
        if record.device == device:
            yield "-" * LEN
            yield from _sums(record)
            yield from notes(record)
    yield "-" * LEN


def _row(row: TensorRow) -> str:
    text = line(f"{_INDENT}{row.name}", size_text(row), readable_size(row.nbytes))
    said = note(row)
    return f"{text}  {said}" if said else text


def _sums(record: Reconciliation) -> Iterator[str]:
    for sign, what, nbytes in sums(record):
        yield line(f"{sign or ' '} {what}", "", readable_size(nbytes))
