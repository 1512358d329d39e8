"""A report as HTML: offline, with a bar for each value.

Note [HTML in notebooks]

JupyterLab shows the outputs of a notebook that is not trusted, such as a fresh clone, through a
sanitizer: it drops ``<style>``, and of inline styles every value that it cannot check, ``var(...)``
among them. So all styles are inline, and none names the colour of text or ground: both are the
theme's own, dark or light. Bars let the ground shine through, and quieter text is translucent.

A table is a row of columns, not of lines: a column says once what all of its lines look like.
Lines meet across columns since each of them has the height of ``_LINES``. The values and the code
scroll by themselves where there is no room for both, so that neither hides the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from pytorch_memlab.records import FunctionTable, Report, Section
from pytorch_memlab.render.cells import (
    cell,
    column_parts,
    column_ranges,
    failure_note,
    headings,
    no_data,
    source_lines,
)
from pytorch_memlab.render.gaps import line_mark, line_notes, table_notes
from pytorch_memlab.render.sections import section_lines

_COLOURS = ("#38f6", "#f826", "#2b56", "#e446", "#85f6", "#a726", "#e4a6", "#7776")
_NEGATIVE = "#8886"
_CHARACTER = 8
"""Pixels that a character of ``_LINES`` has at most."""

_BLOCK = "padding:8px 12px;overflow-x:auto;font:13px/1.45 sans-serif"
_HEADING = "font:600 14px/1.4 monospace;margin:12px 0 6px"
_NOTE = "margin:10px 0 0"
_PLAIN = "font:13px/1.45 monospace;margin:0;overflow-x:auto"
_LINE_NOTE = "opacity:.75;margin:4px 0 0"

_LINES = "display:flex;font:13px/19px monospace;white-space:pre"
_VALUES = "display:flex;flex:none;max-width:60%;overflow-x:auto"
_VALUE = "min-width:{}px;margin:0 4px;text-align:right"
_LINE = "padding:0 8px 0 12px;text-align:right"
_CODE = "overflow-x:auto"
_HEAD = "font-weight:600;opacity:.7;border-bottom:1px solid #8888"

# Without a width the digits stay where they are in unmarked rows.
_MARK = "display:inline-block;width:0;text-align:left;font-weight:600;color:#d9730d;cursor:help"

_FAILED = "font-weight:600;color:#d9730d"

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>:root {{ color-scheme: light dark; }} body {{ margin: 0; }}</style>
</head>
<body>
{body}
</body>
</html>
"""


def render(report: Report) -> str:
    """The report as a page of its own, which loads nothing from elsewhere.

    Args:
        report: what was measured.

    Returns:
        An HTML document.
    """
    names = dict.fromkeys(table.function.qual_name for table in report.tables)
    title = f"Line profile of {', '.join(names)}" if names else "Line profile"
    return _PAGE.format(title=escape(title), body=fragment(report))


def fragment(report: Report) -> str:
    """The report as a piece of a page, as a notebook shows it.

    Args:
        report: what was measured.

    Returns:
        One ``div`` element.
    """
    if report.tables:
        parts, notes = list(_tables(report)), report.notes
    else:
        parts, notes = [], no_data(report)
    parts += map(_section, report.sections)
    parts += [f'<p style="{_NOTE}">{escape(note)}</p>' for note in notes]
    return f'<div style="{_BLOCK}">\n' + "\n".join(parts) + "\n</div>"


def _section(section: Section) -> str:
    _, _, *lines = section_lines(section)
    heading = f'<div style="{_HEADING}">{escape(section.title)}</div>'
    return heading + f'\n<pre style="{_PLAIN}">{escape(chr(10).join(lines))}</pre>'


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of values, alike in all tables, so that bars can be compared.

    Args:
        name: of the column.
        place: of its values in a row.
        least: value of all tables, at most 0.
        largest: value of all tables, at least 0.
        width: pixels.
    """

    name: str
    place: int
    least: float
    largest: float
    width: int


def _columns(report: Report) -> list[_Column]:
    rows = [row for table in report.tables for row in table.rows.values()]
    columns = []
    for place, (name, limits) in enumerate(zip(report.columns, column_ranges(report), strict=True)):
        texts = [*column_parts(name), *(cell(name, row[place]) for row in rows)]
        width = _CHARACTER * (1 + max(map(len, texts)))
        columns.append(_Column(name, place, *limits, width))
    return columns


def _tables(report: Report) -> Iterator[str]:
    """Each table under its heading."""
    columns = _columns(report)
    for heading, table in zip(headings(report), report.tables, strict=True):
        yield f'<h3 style="{_HEADING}">{escape(heading)}</h3>'
        yield _table(table, columns)
        yield from (f'<p style="{_LINE_NOTE}">{escape(note)}</p>' for note in table_notes(table))


def _table(table: FunctionTable, columns: Sequence[_Column]) -> str:
    lines = source_lines(table)
    rows = [table.rows.get(line) for line in lines]
    values = (
        _values(column, [None if row is None else row[column.place] for row in rows])
        for column in columns
    )
    numbers = "\n".join(f"{_line(table, line)} " for line in lines)
    code = "\n".join(_code(table, line, text) for line, text in lines.items())
    return (
        f'<div style="{_LINES}"><div style="{_VALUES}">{"".join(values)}</div>'
        f'<div style="{_LINE}">{_head("line")}{numbers}</div>'
        f'<div style="{_CODE}">{_head("code")}{code}</div></div>'
    )


def _values(column: _Column, values: Sequence[int | float | None]) -> str:
    cells = (_cell(cell(column.name, value), _bar(column, value or 0)) for value in values)
    return f'<div style="{_VALUE.format(column.width)}">{_head(column.name)}{"".join(cells)}</div>'


def _head(column: str) -> str:
    """The head of a column, a line for each part of its name."""
    parts = "".join(f"{escape(part)} <br>" for part in column_parts(column))
    return f'<div style="{_HEAD}">{parts}</div>'


def _cell(text: str, bar: str) -> str:
    return f'<div style="{bar}">{text} </div>' if bar else f"{text} <br>"


def _bar(column: _Column, value: float) -> str:
    """The style of a bar as long as a value's share of its column; none for zero."""
    colour = _COLOURS[column.place % len(_COLOURS)]
    if not value:
        return ""
    if not column.least:
        return f"box-shadow:inset {column.width * value / column.largest:.0f}px 0 {colour}"
    # Zero stands where the longest bar of a negative value ends.
    whole = column.largest - column.least
    begin, end = sorted(100 * (one - column.least) / whole for one in (0, value))
    if value < 0:
        colour = _NEGATIVE
    return f"background:linear-gradient(90deg,#0000 {begin:.0f}%,{colour} 0 {end:.0f}%,#0000 0)"


def _code(table: FunctionTable, line: int, text: str) -> str:
    """The code of a line, and what failed there."""
    note = failure_note(table, line)
    code = escape(text, quote=False)
    return f'{code}  <span style="{_FAILED}">{escape(note)}</span>' if note else code


def _line(table: FunctionTable, line: int) -> str:
    sign = line_mark(table, line)
    if not sign:
        return str(line)
    said = [failure_note(table, line).removeprefix("# ")] if line in table.failed else []
    title = escape("\n".join([*said, *line_notes(table.gaps.get(line, ()))]))
    return f'{line}<span style="{_MARK}" title="{title}">{sign}</span>'
