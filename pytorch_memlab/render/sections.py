"""Sections of a report that follow its tables, in lines of at most 80 columns."""

from __future__ import annotations

from ..records import Section
from ..utils import readable_size
from .rows import WIDTH

_VALUE = 13


def section_lines(section: Section) -> list[str]:
    """The rows under their headings, and the notes.

    >>> for line in section_lines(Section("held", ("now",), (("weights", (4096,)),))):
    ...     print(repr(line[-20:]))
    '## held'
    ''
    '                 now'
    '               4.00K'
    """
    lines = [f"## {section.title}", ""]
    if section.rows:
        lines.append(_row("", section.columns))
        lines += [_row(name, tuple(map(readable_size, values))) for name, values in section.rows]
    return [*lines, *section.notes]


def _row(name: str, values: tuple[str, ...]) -> str:
    room = WIDTH - _VALUE * len(values)
    shown = name if len(name) <= room else name[: room - 1] + "…"
    return f"{shown:<{room}}" + "".join(f"{value:>{_VALUE}}" for value in values)
