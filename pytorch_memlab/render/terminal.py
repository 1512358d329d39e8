"""A report in a terminal: coloured, and cut to its width."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from ..records import FunctionTable, Report
from . import text
from .approximations import table_notes
from .cells import (
    column_ranges,
    failure_note,
    headings,
    source_lines,
)
from .sections import section_lines

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_HEAD_ROWS = 3
_LEAST_CODE_WIDTH = 24


def write(report: Report, stream: TextIO) -> None:
    """Write the report to a stream in the form that suits it."""
    if not is_colourful(stream) or not report.tables:
        stream.write(text.render(report))
        return
    from rich.console import Console

    _print(report, Console(file=stream))


def is_colourful(stream: TextIO) -> bool:
    """True for a terminal whose user did not refuse colour."""
    refused = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return stream.isatty() and not refused


def _print(report: Report, console: Console) -> None:
    maxima = [largest for _, largest in column_ranges(report)]
    for place, (heading, table) in enumerate(zip(headings(report), report.tables, strict=True)):
        if place:
            console.print("\n")
        console.print(f"## {heading}", style="bold", markup=False, highlight=False)
        for rows in _pieces(table, report.columns, maxima, console.width):
            console.print()
            for row in rows:
                console.print(row, no_wrap=True, overflow="ellipsis")
        _print_notes(table_notes(table), console)
    for section in report.sections:
        heading, *lines = section_lines(section)
        console.print("\n")
        console.print(heading, style="bold", markup=False, highlight=False)
        for line in lines:
            console.print(line, markup=False, highlight=False, no_wrap=True, overflow="ellipsis")
    _print_notes(report.notes, console)


def _print_notes(notes: Sequence[str], console: Console) -> None:
    if notes:
        console.print()
    for note in notes:
        console.print(note, markup=False, highlight=False)


def _pieces(
    table: FunctionTable, columns: Sequence[str], maxima: Sequence[float], width: int
) -> Iterator[list[Text]]:
    """The table, split by its columns into pieces that leave room for the code."""
    *values, lines = text.value_columns(table, columns)
    code = _code(table)
    marks = text.line_marks(table)
    notes = {
        number: failure_note(table, line)
        for number, line in enumerate(source_lines(table), _HEAD_ROWS)
        if line in table.failed
    }
    room = width - len(lines[0]) - 2 - _LEAST_CODE_WIDTH
    for places in fitting([len(column[0]) + 1 for column in values], room):
        styled = [(values[place], _styles(table, place, maxima[place])) for place in places]
        rows = [_row(number, styled, lines, marks, code) for number in range(len(lines))]
        for number, note in notes.items():
            rows[number].truncate(max(width - len(note) - 2, 0), overflow="ellipsis")
            rows[number].append(f"  {note}", "bold red")
        # Heads of one part, such as hits, need no second and third row.
        yield [rows[0], *(row for row in rows[1:_HEAD_ROWS] if row.plain), *rows[_HEAD_ROWS:]]


def fitting(widths: Sequence[int], room: int) -> list[list[int]]:
    """Places of the columns, grouped so that each group fits, one column at least in each.

    >>> fitting([15, 15, 15], 32)
    [[0, 1], [2]]
    """
    groups: list[list[int]] = [[]]
    for place, width in enumerate(widths):
        if groups[-1] and sum(widths[other] for other in groups[-1]) + width > room:
            groups.append([])
        groups[-1].append(place)
    return groups


def _styles(table: FunctionTable, place: int, largest: float) -> list[str]:
    """A style for each value of a column: the largest of all tables is bold."""
    values = [
        table.rows[line][place] if line in table.rows else None for line in source_lines(table)
    ]
    return ["bold" if value and value == largest else "" for value in values]


def _row(
    number: int,
    columns: Sequence[tuple[Sequence[str], Sequence[str]]],
    lines: Sequence[str],
    marks: Sequence[str],
    code: Sequence[Text],
) -> Text:
    from rich.text import Text

    head = number < _HEAD_ROWS
    row = Text()
    for cells, styles in columns:
        row.append(f"{cells[number]} ", "dim" if head else styles[number - _HEAD_ROWS])
    row.append(lines[number], "dim" if head else "cyan")
    row.append(marks[number] or " ", "bold yellow")
    row.append(" ")
    row.append(code[number])
    row.rstrip()
    return row


def _code(table: FunctionTable) -> list[Text]:
    """The code column: three head cells, then the highlighted lines."""
    from rich.syntax import Syntax
    from rich.text import Text

    lines = list(source_lines(table).values())
    highlighted = Syntax("", "python", theme="ansi_dark").highlight("\n".join(lines)).split("\n")
    # Rare line ends inside of strings split differently: such a function stays uncoloured.
    code = list(highlighted) if len(highlighted) == len(lines) else list(map(Text, lines))
    return [Text("code", "dim"), Text(), Text(), *code]
