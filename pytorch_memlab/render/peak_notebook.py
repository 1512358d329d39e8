"""The holders of a peak in a notebook. See Note [HTML in notebooks]."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Final

from .._common.prose_size import prose_size
from .._common.quoted import printable
from . import notebook
from .peak import failures, head
from .rows import place, source_line

if TYPE_CHECKING:
    from ..history.holders import Holder, PeakHolders

_MOST_LINES: Final = 20


def fragment(holders: PeakHolders) -> str:
    """The peak of one GPU and the lines that hold most of it."""
    lines, total = holders.by_line(), max(holders.peak.active, 1)
    parts = [notebook.summary(head(holders.peak)), *map(notebook.paragraph, failures(holders))]
    if lines:
        parts.append(notebook.scrolling(_table(lines, total), "Lines that hold memory at the peak"))
    categories = [f"{prose_size(one.size)} {one.name}" for one in holders.by_category()]
    if categories:
        parts.append(notebook.paragraph(f"By category: {', '.join(categories)}"))
    return notebook.block(parts)


def _table(lines: Sequence[Holder], total: int) -> str:
    rows = []
    for one in lines[:_MOST_LINES]:
        name = place(one.file, one.line, one.function)
        code = printable(source_line(one.file, one.line)) if one.file else ""
        rows.append(_cells(name, one.size, total, one.blocks, code))
    rest = lines[_MOST_LINES:]
    if rest:
        size = sum(one.size for one in rest)
        blocks = sum(one.blocks for one in rest)
        rows.append(_cells(f"{len(rest):,} more", size, total, blocks, ""))
    return notebook.table(["line", "held", "share", "blocks", "code"], rows, ["code"])


def _cells(name: str, size: int, total: int, blocks: int, code: str) -> str:
    return (
        notebook.name_cell(name)
        + notebook.bar_cell(prose_size(size), size / total)
        + notebook.value_cell(f"{size / total:.1%}")
        + notebook.value_cell(f"{blocks:,}")
        + notebook.text_cell(escape(code, quote=False))
    )
