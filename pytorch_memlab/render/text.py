"""A report as text, plain or in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TextIO

from ..records import FunctionTable, Report
from . import styled_rows
from .approximations import table_notes
from .cells import cell, column_ranges, headings, no_data, source_lines
from .notes import texts
from .sections import section_lines
from .styled_rows import HEADING, NOTE, Row
from .tables import Column, least_width, line_pieces, number_width, table_rows


def render(report: Report) -> str:
    """The tables, each with what a simulation did not know of its lines, sections, then notes."""
    return styled_rows.plain(_rows(report, None))


def write(report: Report, stream: TextIO) -> None:
    """Write the report to a stream in the form that suits it."""
    if report.tables:
        styled_rows.write(partial(_rows, report), stream)
    else:
        stream.write(render(report))


def _rows(report: Report, width: int | None) -> Iterator[Row]:
    if not report.tables:
        yield from ([(line, NOTE)] for line in no_data(report))
    largest = [most for _, most in column_ranges(report)]
    for place, (heading, table) in enumerate(zip(headings(report), report.tables, strict=True)):
        yield from ([], []) if place else ()
        yield [(f"## {heading}", HEADING)]
        yield []
        yield from _table(table, report.columns, largest, width)
        yield from _notes(table_notes(table))
    for section in report.sections:
        title, *lines = section_lines(section)
        yield from ([], [], [(title, HEADING)])
        yield from ([(line, "")] for line in lines)
    yield from _notes(texts(report.notes) if report.tables else ())


def _table(
    table: FunctionTable, columns: Sequence[str], largest: Sequence[float], width: int | None
) -> Iterator[Row]:
    lines = [*source_lines(table)]
    found = []
    for place, (name, most) in enumerate(zip(columns, largest, strict=True)):
        values = {line: row[place] for line, row in table.rows.items()}
        cells = {
            line: (cell(name, value), "bold" if value and value == most else "")
            for line, value in values.items()
        }
        found.append(Column(name, cells, least_width(name, [text for text, _ in cells.values()])))
    numbers = number_width(lines)
    behind = line_pieces(table, numbers, in_colour=width is not None)
    yield from table_rows(found, lines, behind, numbers, width)


def _notes(notes: Sequence[str]) -> Iterator[Row]:
    if notes:
        yield []
    yield from ([(note, NOTE)] for note in notes)
