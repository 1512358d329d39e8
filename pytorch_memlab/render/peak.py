"""Peak holders as text."""

from __future__ import annotations

import linecache
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..history.holders import Holder, PeakHolders

_WIDTH = 80


def text(holders: PeakHolders, top: int | None = 20, by: str = "line") -> str:
    """The peak of one GPU, and what holds it.

    Args:
        holders: of the peak.
        top: how many rows to show; None for all.
        by: ``line`` or ``function``.

    Returns:
        Lines of at most 80 columns.
    """
    peak = holders.peak
    rows = holders.by_function() if by == "function" else holders.by_line()
    shown = rows if top is None else rows[:top]
    moment = "before the first event" if peak.event < 0 else f"event {peak.event + 1:,}"
    head = (
        f"cuda:{peak.device}: {size_text(peak.active)} in use at the peak, "
        f"{size_text(peak.reserved)} reserved ({moment} of {peak.events:,})"
    )
    lines = [head, "", *_table(shown, peak.active)]
    if len(rows) > len(shown):
        rest = rows[len(shown) :]
        lines.append(_row(sum(one.size for one in rest), peak.active, f"{len(rest)} more"))
    return "\n".join(lines) + "\n"


def size_text(nbytes: int) -> str:
    """A size in MiB or GiB, as prose has it.

    >>> size_text(3 * 2**30), size_text(5 * 2**20), size_text(100)
    ('3.00 GiB', '5.0 MiB', '100 B')
    """
    if nbytes >= 2**30:
        return f"{nbytes / 2**30:.2f} GiB"
    if nbytes >= 2**20:
        return f"{nbytes / 2**20:.1f} MiB"
    return f"{nbytes / 2**10:.1f} KiB" if nbytes >= 2**10 else f"{nbytes} B"


def _table(holders: Sequence[Holder], total: int) -> list[str]:
    lines = []
    for holder in holders:
        if not holder.file:
            lines.append(_row(holder.size, total, holder.function))
            continue
        place = os.path.basename(holder.file)
        if holder.line is not None:
            place += f":{holder.line}"
        lines.append(_row(holder.size, total, f"{place}  {holder.function}"))
        source = linecache.getline(holder.file, holder.line).strip() if holder.line else ""
        if source:
            lines.append(_cut(" " * 24 + source))
        if holder.backward:
            lines.append(f"{'':24}{size_text(holder.backward)} of it in the backward pass")
    return lines


def _row(size: int, total: int, what: str) -> str:
    return _cut(f"{size_text(size):>12}  {size / max(total, 1):6.1%}  {what}")


def _cut(line: str) -> str:
    return line if len(line) <= _WIDTH else line[: _WIDTH - 1] + "…"
