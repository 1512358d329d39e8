"""A report as text, plain or in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TextIO

from ..records import Report
from .notes import table_notes, texts
from .rows import HEADING, NOTE, Row, plain_text, section_lines, write_rows
from .tables import cell, column_ranges, headings, no_data, source_lines, table_rows, widths_of


def render(report: Report) -> str:
    """The tables, each with what a simulation did not know of its lines, sections, then notes."""
    return plain_text(_rows(report, None))


def write(report: Report, stream: TextIO) -> None:
    """Write the report to a stream in the form that suits it."""
    if report.tables:
        write_rows(partial(_rows, report), stream)
    else:
        stream.write(render(report))


def _rows(report: Report, width: int | None) -> Iterator[Row]:
    if not report.tables:
        yield from ([(line, NOTE)] for line in no_data(report))
    largest = [most for _, most in column_ranges(report)]

    def style(place: int, value: float | None) -> str:
        return "bold" if value and value == largest[place] else ""

    for place, (heading, table) in enumerate(zip(headings(report), report.tables, strict=True)):
        yield from ([], []) if place else ()
        yield [(f"## {heading}", HEADING)]
        yield []
        lines = [*source_lines(table)]
        widths = widths_of(report.columns, [(table, lines)], cell)
        yield from table_rows(table, report.columns, lines, widths, width, cell, style)
        yield from _notes(table_notes(table))
    for section in report.sections:
        title, *rows = section_lines(section)
        yield from ([], [], [(title, HEADING)])
        yield from ([(row, "")] for row in rows)
    yield from _notes(texts(report.notes) if report.tables else ())


def _notes(notes: Sequence[str]) -> Iterator[Row]:
    if notes:
        yield []
    yield from ([(note, NOTE)] for note in notes)
