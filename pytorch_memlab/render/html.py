"""A report as HTML: offline, a row for each line of code. See Note [HTML in notebooks]."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from .._common.prose_size import prose_size
from .._common.quoted import printable, visible
from ..records import FunctionTable, Report
from .approximations import line_mark, line_notes, table_notes
from .cells import (
    cell,
    column_ranges,
    failure_note,
    headings,
    is_of_bytes,
    no_data,
    source_lines,
)
from .notebook import (
    BAR,
    PEAK,
    STAYS,
    block,
    folded,
    heading,
    paragraph,
    plain,
    scrolling,
    summary,
)
from .notes import texts
from .page import fill
from .rows import section_lines

_NEGATIVE = "#8886"
_CHARACTER = 8
"""Pixels that a character of a table has at most."""
_LONGEST_CODE = 64
"""Characters of a line of code; what is cut off stands in its title."""
_FOLDED_FROM = 10
"""Lines in a row that have no values and are folded."""
_NAMED = 3

_TABLE = (
    "border-collapse:separate;border-spacing:12px 0;margin:0 0 0 -6px;table-layout:auto;"
    "font:13px/1.45 monospace;text-align:right"
)
_HEAD = "padding:0 0 3px;font-weight:600;white-space:nowrap;border-bottom:1px solid #8888"
_CODE = f"{STAYS};padding:0;text-align:left;white-space:pre;font-weight:400"
_AT_PEAK = f"{_CODE};box-shadow:-4px 0 {PEAK}"

_BLOCKS = {"active": "active blocks", "inactive_split": "inactive split blocks"}
"""Fields of counts that are called like fields of bytes."""

_Line = tuple[int, int]
"""Place of a table, and number of a line in it."""


def render(report: Report) -> str:
    """The report as a whole page, which loads nothing from elsewhere."""
    names = dict.fromkeys(table.function.qual_name for table in report.tables)
    title = f"Line profile of {', '.join(names)}" if names else "Line profile"
    # The title of the page is a heading of the first level, those of the tables of the second.
    body = fragment(report).replace("<h3 ", "<h2 ").replace("</h3>", "</h2>")
    return fill("tables.html", title=escape(title), body=body) + "\n"


def fragment(report: Report) -> str:
    """The report as a piece of a page, as a notebook shows it."""
    if report.tables:
        parts, notes = list(_tables(report)), texts(report.notes)
    else:
        parts, notes = [], no_data(report)
    for section in report.sections:
        text = "\n".join(section_lines(section)[2:])
        parts += [heading(section.title), plain(text, section.title)]
    return block([*parts, *map(paragraph, notes)])


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of values, alike in all tables, so that bars can be compared."""

    name: str
    place: int
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
        *(one for one in rest if one != "all"),
    ]
    return " ".join(words).replace("_", " ")


def _tables(report: Report) -> Iterator[str]:
    """The sentence on the peak, then each table under its heading."""
    rows = [row for table in report.tables for row in table.rows.values()]
    columns = []
    for place, (name, limits) in enumerate(zip(report.columns, column_ranges(report), strict=True)):
        cells = [head_of(name), *(cell(name, row[place]) for row in rows)]
        columns.append(_Column(name, place, *limits, _CHARACTER * max(map(len, cells))))
    size, peaks = _peak(report)
    if size:
        yield summary(_peak_sentence(report, size, peaks))
    for place, (name, table) in enumerate(zip(headings(report), report.tables, strict=True)):
        at_peak = {line for one, line in peaks if one == place}
        yield heading(visible(name))
        yield scrolling(_table(table, columns, at_peak), f"Lines of {printable(name)}")
        notes = table_notes(table)
        if notes:
            plural = "s" * (len(notes) > 1)
            yield folded(f"{len(notes)} note{plural} on these lines", map(visible, notes))


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
        places.append(f"{more} more line{'s' * (more > 1)}")
    *first, last = places
    where = f"{', '.join(first)} and {last}" if first else last
    devices = {table.device.name for table in report.tables}
    on = f" on {report.tables[lines[0][0]].device.name}" if len(devices) > 1 else ""
    return f"Peak {prose_size(size)}{on}, at {where}"


def _table(table: FunctionTable, columns: Sequence[_Column], at_peak: Collection[int]) -> str:
    width = max((len(str(line)) for line in source_lines(table)), default=1)
    cells = [
        f'<th title="{escape(column.name)}" style="{_HEAD};min-width:{column.width}px">'
        f"{escape(head_of(column.name))}</th>"
        for column in columns
    ]
    code = f'<th style="{_HEAD};{STAYS};text-align:left">{"line":>{width}} code</th>'
    rows = "".join(_rows(table, columns, at_peak, width))
    # End tags that HTML does not need are left out: they would be a tenth of the output.
    return (
        f'<table style="{_TABLE}"><thead><tr>{code}{"".join(cells)}</tr></thead><tbody>'
        f"{rows}</tbody></table>"
    )


def _rows(
    table: FunctionTable, columns: Sequence[_Column], at_peak: Collection[int], width: int
) -> Iterator[str]:
    """A row for each line that has values, and one for all lines between two of those."""
    others: list[str] = []
    for line, code in source_lines(table).items():
        text, title = _code(table, line, code, width)
        if line not in table.rows:
            others.append(text)
            continue
        yield _without_values(others)
        others = []
        style = _AT_PEAK if line in at_peak else _CODE
        mark = "  <b>◀ peak</b>" if line in at_peak else ""
        values = "".join(_cell(column, table.rows[line][column.place]) for column in columns)
        yield f'<tr><th style="{style}"{title}>{text}{mark}{values}'
    yield _without_values(others)


def _without_values(lines: Sequence[str]) -> str:
    if not lines:
        return ""
    text = "<br>".join(lines)
    if len(lines) >= _FOLDED_FROM:
        text = f"<details><summary>{len(lines)} lines without values</summary>{text}</details>"
    return f'<tr><th style="{_CODE}">{text}'


def _code(table: FunctionTable, line: int, code: str, width: int) -> tuple[str, str]:
    """A line with its number, its mark and its code, and its attribute ``title`` if it is cut."""
    text, title = visible(code, "\t"), ""
    if len(text) > _LONGEST_CODE:
        title = f' title="{escape(text.strip())}"'
        text = f"{text[: _LONGEST_CODE - 1]}…"
    failure = failure_note(table, line)
    mark = line_mark(table, line) or " "
    if mark != " ":
        said = [failure.removeprefix("# ")] if failure else []
        notes = [*said, *line_notes(table.approximations.get(line, ()))]
        mark = f'<b title="{escape(visible(chr(10).join(notes), chr(10)))}">{mark}</b>'
    failed = f"  <b>{escape(failure)}</b>" if failure else ""
    return f"{line:>{width}}{mark} {escape(text, quote=False)}{failed}", title


def _cell(column: _Column, value: int | float | None) -> str:
    """A value, zero without a unit: what is left stands out.

    The style overrides the theme's padding, which would tear the lines apart.
    """
    if value is None:
        return "<td>"
    # Only the first column and those of what was kept or freed: more bars would compete.
    bar = _bar(column, value) if column.place == 0 or column.least < 0 else ""
    style = f'"padding:0;{bar}"' if bar else "padding:0"
    return f"<td style={style}>{cell(column.name, value) if value else 0}"


def _bar(column: _Column, value: float) -> str:
    """The style of a bar as long as a value's share of its column; none for zero."""
    if not value:
        return ""
    if not column.least:
        return f"box-shadow:inset {column.width * value / column.largest:.0f}px 0 {BAR}"
    # Zero stands where the longest bar of a negative value ends.
    whole = column.largest - column.least
    begin, end = sorted(100 * (one - column.least) / whole for one in (0, value))
    colour = _NEGATIVE if value < 0 else BAR
    return f"background:linear-gradient(90deg,#0000 {begin:.0f}%,{colour} 0 {end:.0f}%,#0000 0)"
