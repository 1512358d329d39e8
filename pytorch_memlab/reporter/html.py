"""Reports as HTML for a notebook: offline, every text from outside escaped."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

from ..render.notebook import (
    bar_cell,
    block,
    heading,
    name_cell,
    paragraph,
    plain,
    scrolling,
    summary,
    table,
    text_cell,
    value_cell,
)
from ..utils import readable_size
from .cells import note, notes, signed, size_text, sums
from .records import CATEGORIES, Reconciliation, TensorRow

if TYPE_CHECKING:
    import torch

    from .differences import Change, Difference
    from .snapshot import MemorySnapshot

_STRONG = ";font-weight:600;border-top:1px solid #8888"
_QUIET = ";opacity:.75"


def snapshot_fragment(snapshot: MemorySnapshot) -> str:
    """A snapshot as a piece of a page, as a notebook shows it."""
    parts = [part for device in snapshot.devices() for part in _device(snapshot, device)]
    return block([summary(snapshot.summary()), *parts])


def difference_fragment(difference: Difference) -> str:
    """A difference as a piece of a page."""
    parts = [summary(difference.summary())]
    if difference.changes:
        most = max(abs(change.delta) for change in difference.changes)
        heads = ["name", "change", "device", "before", "after", "difference"]
        rows = [_change(change, most) for change in difference.changes]
        parts.append(scrolling(table(heads, rows, ["change", "device"]), "Changes of memory"))
    return block(parts)


def text_fragment(text: str, label: str) -> str:
    """Plain text as a piece of a page."""
    return block([plain(text, label)])


def _change(change: Change, most: int) -> str:
    return (
        name_cell(change.name)
        + text_cell(escape(change.kind))
        + text_cell(escape(change.device))
        + value_cell(readable_size(change.before))
        + value_cell(readable_size(change.after))
        + bar_cell(signed(change.delta), abs(change.delta) / max(most, 1))
    )


def _device(snapshot: MemorySnapshot, device: torch.device) -> Iterator[str]:
    description = dict(snapshot.descriptions).get(str(device))
    yield heading(f"{device}: {description}" if description else str(device))
    here = [row for row in snapshot.rows if row.device == device]
    most = max((row.nbytes for row in here), default=0)
    totals = snapshot.totals(device)
    rows = []
    for category in CATEGORIES:
        members = [row for row in here if row.category == category]
        if members:
            total = value_cell(readable_size(totals[category]), _STRONG)
            names = name_cell(category, _STRONG) + text_cell("", _STRONG)
            rows.append(names + total + text_cell("", _STRONG))
            rows += [_tensor(row, most) for row in members]
    if rows:
        heads = ["tensor", "size", "memory", "held by"]
        yield scrolling(table(heads, rows, ["held by"]), f"Tensors on {device}")
    for record in snapshot.reconciliations:
        if record.device == device:
            yield from _reconciliation(record)


def _tensor(row: TensorRow, most: int) -> str:
    return (
        name_cell(f"  {row.name}")
        + value_cell(escape(size_text(row)))
        + bar_cell(readable_size(row.nbytes), row.nbytes / max(most, 1))
        + text_cell(escape(note(row), quote=False), _QUIET)
    )


def _reconciliation(record: Reconciliation) -> Iterator[str]:
    rows = []
    for sign, what, nbytes in sums(record):
        style = _STRONG if sign == "=" else ""
        name = name_cell(f"{sign or ' '} {what}", style)
        rows.append(name + value_cell(readable_size(nbytes), style))
    label = f"Memory of {record.device}"
    yield f'<div style="height:10px"></div>{scrolling(table(["memory", "bytes"], rows), label)}'
    yield from map(paragraph, notes(record))
