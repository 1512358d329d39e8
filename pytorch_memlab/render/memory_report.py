"""Reports of the memory reporter, as text and for a notebook."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from .._common.text.prose_size import counted, prose_size
from ..reporter.memory_snapshot import (
    ALLOCATION_UNIT,
    CATEGORIES,
    SAVED,
    SHARES,
    Reconciliation,
    TensorRow,
    TensorStat,
)
from ..utils import readable_size
from .page import fill, notebook_text
from .rows import filled

if TYPE_CHECKING:
    from ..reporter.leaks import LeakWatch
    from ..reporter.memory_snapshot import MemorySnapshot
    from ..reporter.snapshot_differences import Difference

LEN = 79
"""Width of a separator, in characters."""

_NAME, _NAME_AND_SIZE, _MEMORY = 40, 60, 10


def header() -> str:
    """The line above all devices.

    >>> header()
    'Element type                                            Size  Used MEM'
    """
    return _line("Element type", "Size", "Used MEM")


def section(
    device: torch.device,
    stats: Sequence[TensorStat],
    verbose: bool,
    record: Reconciliation | None,
    graph: bool,
) -> Iterator[str]:
    """The lines of one device."""
    yield "-" * LEN
    yield f"Storage on {device}"
    for name, size, _, memory in stats:
        label = name if verbose else name.split(SHARES)[0]
        yield _line(label, str(size) if size else "", readable_size(memory))
    yield "-" * LEN
    numel = sum(row[2] for row in stats)
    used = sum(row[3] for row in stats)
    yield f"Total Tensors: {numel} \tUsed Memory: {readable_size(used)}".expandtabs()
    if record is not None:
        yield f"The allocated memory on {device}: {readable_size(record.allocated)}"
        if record.workspaces:
            yield f"Kernels' workspaces on {device}: {readable_size(record.workspaces)}"
        rounded = -(-record.workspaces // ALLOCATION_UNIT) * ALLOCATION_UNIT
        if record.allocated != used + rounded:
            buffers = " or invisible gradient buffer tensors" if graph and record.unknown else ""
            yield f"Memory differs due to the matrix alignment{buffers}"
    yield "-" * LEN


def snapshot(report: MemorySnapshot) -> str:
    """Categories with their tensors and sums, and the reconciliation of each device."""
    lines = [part for device in report.devices() for part in _device(report, device)]
    return "\n".join(lines or ["no tensors"])


def difference(compared: Difference) -> str:
    """A table of the names that changed."""
    if not compared.changes:
        return "no change"
    lines = [_line("", "Before", "After"), "-" * LEN]
    devices = Counter(change.name for change in compared.changes)
    for change in compared.changes:
        before, after = readable_size(change.before), readable_size(change.after)
        where = f" on {change.device}" if devices[change.name] > 1 else ""
        left = _line(f"{change.kind:<7s}{change.name}{where}", before, after)
        lines.append(f"{left}{signed(change.delta):>11s}")
    total = sum(change.delta for change in compared.changes)
    lines += ["-" * LEN, f"in all: {signed(total)}"]
    return "\n".join(lines)


def leaks(watch: LeakWatch[object]) -> str:
    """A table of the names that grew with every iteration."""
    done = watch.iterations
    if done < watch.fewest:
        return f"{counted(done, 'iteration')} done: {watch.fewest} are needed to tell a leak"
    if not watch.growing:
        return f"nothing grew with every one of {done} iterations"
    lines = [_line(f"grew with each of {done} iterations", "by each", "now"), "-" * LEN]
    for growth in watch.growing:
        name = f"{growth.name} on {growth.device}" + (f" ({growth.line})" if growth.line else "")
        lines.append(_line(name, signed(growth.per_iteration), readable_size(growth.sizes[-1])))
    return "\n".join(lines)


def size_text(row: TensorRow) -> str:
    """The lengths of the dimensions, empty for a row that stands for several."""
    return str(row.size) if row.size else ""


def note(row: TensorRow) -> str:
    """The note on a row: the tensor that it views or shares, and the node that saved it.

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


def sums(record: Reconciliation) -> Iterator[tuple[str, int | None]]:
    """The lines of a reconciliation."""
    yield "  tensors", record.tensors
    yield f"+ {SAVED.removeprefix('activations ')}", record.saved
    yield "+ rounding", record.rounding
    yield "+ kernels' workspaces", record.workspaces
    yield "+ unknown", record.unknown
    yield "= allocated", record.allocated
    if record.graphs:
        yield "+ reserved by CUDA graphs", record.graphs
    yield "+ cached", record.cached
    yield "= reserved", record.reserved
    if record.used is not None:
        if record.context is None or record.others is None:
            yield "+ context and other processes", record.used - record.reserved
        else:
            yield "+ context", record.context
            yield "+ other processes", record.others
        yield "= used on the device", record.used


def notes(record: Reconciliation) -> Iterator[str]:
    """The notes below a reconciliation."""
    if not record.shows_blocks:
        yield "this device does not show its blocks: rounding and workspaces are in unknown"
    if record.workspaces_by_size:
        yield (
            "kernels' workspaces: PyTorch does not tell where they are; counted are blocks without "
            "a tensor that have the size of a cuBLAS workspace"
        )
    if record.results_of_cells:
        kept = f"IPython keeps {prose_size(record.results_of_cells)} as results of cells"
        yield f"{kept}: %reset -f out frees all but _, __, ___"
    if record.frozen_objects:
        yield (
            f"{record.frozen_objects} objects are under gc.freeze(), where Python shows no "
            "tensors: see unknown"
        )
    if record.foreign:
        size = prose_size(record.foreign)
        yield f"{size} of the tensors are memory of another process or library"


def _title(report: MemorySnapshot, device: torch.device) -> str:
    description = dict(report.descriptions).get(str(device))
    return f"{device}: {description}" if description else str(device)


def _groups(
    report: MemorySnapshot, device: torch.device
) -> Iterator[tuple[str, int, list[TensorRow]]]:
    """The categories of the tensors of a device, with their bytes and rows."""
    totals = report.totals(device)
    for category in CATEGORIES:
        rows = [row for row in report.rows if row.device == device and row.category == category]
        if rows:
            yield category, totals[category], rows


def _records(report: MemorySnapshot, device: torch.device) -> list[Reconciliation]:
    return [record for record in report.reconciliations if record.device == device]


def _device(report: MemorySnapshot, device: torch.device) -> Iterator[str]:
    yield "=" * LEN
    yield _title(report, device)
    yield "-" * LEN
    for category, total, rows in _groups(report, device):
        yield _line(category, "", readable_size(total))
        yield from map(_row, rows)
    for record in _records(report, device):
        yield "-" * LEN
        for name, nbytes in sums(record):
            yield _line(name, "", readable_size(nbytes))
        yield from notes(record)
    yield "-" * LEN


def _row(row: TensorRow) -> str:
    text = _line(f"  {row.name}", size_text(row), readable_size(row.nbytes))
    said = note(row)
    return f"{text}  {said}" if said else text


def _line(name: str, size: str, memory: str) -> str:
    """Three columns; a long name takes the room of the size.

    >>> _line("weight", "(1024, 1024)", "4.00M")
    'weight                                          (1024, 1024)     4.00M'
    >>> _line("权重", "(1024, 1024)", "4.00M")
    '权重                                            (1024, 1024)     4.00M'
    """
    left = filled(name, _NAME) + " " * (len(name) > _NAME)
    return f"{filled(left, _NAME_AND_SIZE - len(size))}{size}{memory:>{_MEMORY}}"


# In a notebook


def snapshot_html(report: MemorySnapshot) -> str:
    """The tables of a snapshot. See Note [HTML in notebooks]."""
    devices = [
        {
            "name": str(device),
            "title": _title(report, device),
            "groups": list(_groups(report, device)),
            "most": max([1, *(row.nbytes for row in report.rows if row.device == device)]),
            "records": _records(report, device),
        }
        for device in report.devices()
    ]
    return fill(
        "memory_snapshot.html",
        summary=report.summary(),
        devices=devices,
        size_text=size_text,
        note=note,
        sums=sums,
        notes=notes,
    )


def difference_html(compared: Difference) -> str:
    """The table of the names that changed."""
    most = max([1, *(abs(change.delta) for change in compared.changes)])
    return fill("memory_difference.html", found=compared, most=most, signed=signed)


def leaks_html(watch: LeakWatch[object]) -> str:
    """The names that grew, as plain text."""
    return notebook_text(leaks(watch), "What grew with every iteration")
