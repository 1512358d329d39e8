"""Reports of the memory reporter for a notebook. See Note [HTML in notebooks]."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

from ..reporter.records import CATEGORIES, Reconciliation, TensorRow
from ..utils import readable_size
from .memory_report import leaks as leaks_text, note, notes, signed, size_text, sums
from .notebook import (
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

if TYPE_CHECKING:
    import torch

    from ..reporter.differences import Change, Difference
    from ..reporter.leaks import LeakWatch
    from ..reporter.snapshot import MemorySnapshot

_STRONG = ";font-weight:600;border-top:1px solid #8888"
_QUIET = ";opacity:.75"


def snapshot(report: MemorySnapshot) -> str:
    """The tables of a snapshot."""
    parts = [part for device in report.devices() for part in _device(report, device)]
    return block([summary(report.summary()), *parts])


def difference(found: Difference) -> str:
    """The table of the names that changed."""
    parts = [summary(found.summary())]
    if found.changes:
        most = max(abs(change.delta) for change in found.changes)
        heads = ["name", "change", "device", "before", "after", "difference"]
        rows = [_change(change, most) for change in found.changes]
        parts.append(scrolling(table(heads, rows, ["change", "device"]), "Changes of memory"))
    return block(parts)


def leaks(watch: LeakWatch[object]) -> str:
    """The names that grew, as plain text."""
    return block([plain(leaks_text(watch), "What grew with every iteration")])


def _change(change: Change, most: int) -> str:
    return (
        name_cell(change.name)
        + text_cell(escape(change.kind))
        + text_cell(escape(change.device))
        + value_cell(readable_size(change.before))
        + value_cell(readable_size(change.after))
        + bar_cell(signed(change.delta), abs(change.delta) / max(most, 1))
    )


def _device(report: MemorySnapshot, device: torch.device) -> Iterator[str]:
    description = dict(report.descriptions).get(str(device))
    yield heading(f"{device}: {description}" if description else str(device))
    here = [row for row in report.rows if row.device == device]
    most = max((row.nbytes for row in here), default=0)
    totals = report.totals(device)
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
    for record in report.reconciliations:
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
    for what, nbytes in sums(record):
        style = _STRONG if what.startswith("=") else ""
        name = name_cell(what, style)
        rows.append(name + value_cell(readable_size(nbytes), style))
    label = f"Memory of {record.device}"
    yield f'<div style="height:10px"></div>{scrolling(table(["memory", "bytes"], rows), label)}'
    yield from map(paragraph, notes(record))
