"""A report as HTML: offline, a row for each line of code.

Note [HTML in notebooks]

JupyterLab shows the outputs of a notebook that is not trusted, such as a fresh clone, through a
sanitizer: it drops ``<style>``, roles, and of inline styles every value that it cannot check,
``var(...)`` and ``position:sticky`` among them. So all styles are inline, and nothing depends on
those values: without them text and ground are the theme's own, dark or light, bars let the ground
shine through, and quieter text is translucent. No text has its own colour, as no colour is
readable on both a white and a black ground.

With them, ground and text are the theme's own too, by its variables: the code, which stays at the
left while the values scroll below it, has to cover them. GitHub drops all styles: what is left is
a table with a row for each line.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from .._common.process.garbage_collection import no_garbage_collection
from .._common.text.prose_size import counted, prose_size
from .._common.text.quoted import listed, printable
from ..records import FunctionTable, Report
from .notes import line_mark, table_notes, texts
from .page import fill
from .rows import cut, section_lines
from .tables import (
    column_ranges,
    failure_note,
    headings,
    is_of_bytes,
    line_remarks,
    no_data,
    prose_cell,
    source_lines,
)

_BAR = "#38f6"
_NEGATIVE = "#8886"
_CHARACTER = 8
"""Pixels that a character of a table has at most."""
_LONGEST_CODE = 64
"""Columns of a line of code; what is cut off stands in its title."""
_NAMED = 3

_BLOCKS = {"active": "active blocks", "inactive_split": "inactive split blocks"}
"""Fields of counts that are called like fields of bytes."""

_Line = tuple[int, int]
"""Place of a table, and number of a line in it."""


def render(report: Report) -> str:
    """The report as a whole page, which loads nothing from elsewhere."""
    names = listed(table.function.qual_name for table in report.tables)
    title = f"Line profile of {names}" if names else "Line profile"
    # The title of the page is a heading of the first level, those of the tables of the second.
    body = fragment(report).replace("<h3 ", "<h2 ").replace("</h3>", "</h2>")
    return fill("tables.html", title=title, body=body) + "\n"


@no_garbage_collection()
def fragment(report: Report) -> str:
    """The report as a piece of a page, as a notebook shows it."""
    size, peaks = _peak(report)
    cells = [
        {line: list(map(prose_cell, report.columns, row)) for line, row in table.rows.items()}
        for table in report.tables
    ]
    columns = _columns(report, [row for rows in cells for row in rows.values()])
    marked = set(peaks)
    return fill(
        "line_profile.html",
        peak=_peak_sentence(report, size, peaks) if size else "",
        columns=columns,
        tables=[
            _table(place, heading, table, rows, columns, marked)
            for place, (heading, table, rows) in enumerate(
                zip(headings(report), report.tables, cells, strict=True)
            )
        ],
        sections=[
            (section.title, "\n".join(section_lines(section))) for section in report.sections
        ],
        notes=texts(report.notes) if report.tables else no_data(report),
    )


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of values, alike in all tables, so that bars can be compared."""

    name: str
    head: str
    is_first: bool
    least: float  # value of all tables, at most 0
    largest: float  # value of all tables, at least 0
    width: int


def head_of(column: str) -> str:
    """A column's name in words.

    >>> head_of("active_bytes.all.peak"), head_of("active.large_pool.current"), head_of("hits")
    ('active peak', 'active blocks large pool current', 'hits')
    """
    field, *rest = column.split(".")
    words = [
        _BLOCKS.get(field, field).removesuffix("_bytes"),
        *(number for number in rest if number != "all"),
    ]
    return " ".join(words).replace("_", " ")


def _columns(report: Report, rows: Sequence[Sequence[str]]) -> list[_Column]:
    columns = []
    for place, (name, limits) in enumerate(zip(report.columns, column_ranges(report), strict=True)):
        head = head_of(name)
        longest = max([len(head), *(len(row[place]) for row in rows)])
        columns.append(_Column(name, head, not place, *limits, _CHARACTER * longest))
    return columns


def _table(
    place: int,
    heading: str,
    table: FunctionTable,
    rows: Mapping[int, Sequence[str]],
    columns: Sequence[_Column],
    peaks: Collection[_Line],
) -> dict[str, Any]:
    """A table, with the lines that have values and those between them in groups."""
    source = source_lines(table)
    width = len(str(max(source, default=0)))
    lines = []
    for line, text in source.items():
        mark, code, cells = line_mark(table, line), cut(text, _LONGEST_CODE), None
        if line in table.rows:
            values = zip(columns, table.rows[line], rows[line], strict=True)
            cells = [(text, _bar(column, value)) for column, value, text in values]
        # A tuple, since looking names up would take the template a third of its time.
        lines.append(
            (
                f"{line:>{width}}",
                mark,
                "\n".join(line_remarks(table, line)) if mark else "",
                code,
                "" if code == text else text.strip(),
                failure_note(table, line),
                (place, line) in peaks,
                cells,
            )
        )
    return {
        "heading": heading,
        "label": f"Lines of {printable(heading)}",
        "width": width,
        "groups": [list(group) for _, group in groupby(lines, lambda line: line[-1] is None)],
        "notes": table_notes(table),
    }


def _peak(report: Report) -> tuple[int, list[_Line]]:
    """The highest peak of memory in use, and the lines that have it; 0 without such a column."""
    names = [name.partition(" ")[0] for name in report.columns]
    for place, name in enumerate(names):
        is_peak = is_of_bytes(name) and name.rpartition(".")[2] == "peak"
        if is_peak and not name.startswith("reserved"):
            sizes = {
                (number, line): int(row[place] or 0)
                for number, table in enumerate(report.tables)
                for line, row in table.rows.items()
            }
            most = max(sizes.values(), default=0)
            return most, [line for line, size in sizes.items() if most and size == most]
    return 0, []


def _peak_sentence(report: Report, size: int, lines: Sequence[_Line]) -> str:
    places = [
        f"line {line} of {printable(report.tables[number].function.qual_name)}"
        for number, line in lines[:_NAMED]
    ]
    more = len(lines) - _NAMED
    if more > 0:
        places.append(counted(more, "more line"))
    *first, last = places
    where = f"{', '.join(first)} and {last}" if first else last
    devices = {table.device.name for table in report.tables}
    on = f" on {report.tables[lines[0][0]].device.name}" if len(devices) > 1 else ""
    return f"Peak {prose_size(size)}{on}, at {where}"


def _bar(column: _Column, value: float | None) -> str:
    """The style of a bar as long as the share of a value in its column; none for zero."""
    # Only the first column and those of what was kept or freed: more bars would compete.
    if not value or (column.least >= 0 and not column.is_first):
        return ""
    if not column.least:
        return f"box-shadow:inset {column.width * value / column.largest:.0f}px 0 {_BAR}"
    # Zero stands where the longest bar of a negative value ends.
    whole = column.largest - column.least
    begin, end = sorted(100 * (end - column.least) / whole for end in (0, value))
    colour = _NEGATIVE if value < 0 else _BAR
    return f"background:linear-gradient(90deg,#0000 {begin:.0f}%,{colour} 0 {end:.0f}%,#0000 0)"
