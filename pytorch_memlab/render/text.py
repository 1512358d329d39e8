"""A report as plain text."""

from __future__ import annotations

from collections.abc import Sequence

from ..records import FunctionTable, Report
from .approximations import line_mark, table_notes
from .cells import (
    cell,
    column_parts,
    failure_note,
    headings,
    no_data,
    source_lines,
)
from .sections import section_lines


def render(report: Report) -> str:
    """The tables, each with what a simulation did not know of its lines, sections, then notes."""
    sections = "".join("\n\n\n" + "\n".join(section_lines(section)) for section in report.sections)
    if not report.tables:
        return "\n".join(no_data(report)) + sections + "\n"
    tables = "\n\n\n".join(
        "\n".join([f"## {heading}", "", *_table(table, report.columns), *_below(table)])
        for heading, table in zip(headings(report), report.tables, strict=True)
    )
    notes = "".join(f"\n{note}" for note in report.notes)
    return tables + sections + (f"\n{notes}" if notes else "") + "\n"


def value_columns(table: FunctionTable, columns: Sequence[str]) -> list[list[str]]:
    """The cells of each column, three head rows first, made equally wide."""
    lines = source_lines(table)
    blank = (None,) * len(columns)
    rows = [table.rows.get(line, blank) for line in lines]
    cells = [
        [*column_parts(column), *(cell(column, row[place]) for row in rows)]
        for place, column in enumerate(columns)
    ]
    return [_right_aligned(texts) for texts in [*cells, ["line", "", "", *map(str, lines)]]]


def _table(table: FunctionTable, columns: Sequence[str]) -> list[str]:
    code = ["code", "", "", *_code(table)]
    rows = zip(*value_columns(table, columns), strict=True)
    lines = [
        f"{' '.join(row)}{sign or ' '} {text}".rstrip()
        for row, sign, text in zip(rows, line_marks(table), code, strict=True)
    ]
    # Heads of one part, such as hits, need no second and third row.
    return [lines[0], *filter(None, lines[1:3]), *lines[3:]]


def line_marks(table: FunctionTable) -> list[str]:
    """The columns behind the line numbers: three head cells and one cell for each line."""
    return ["", "", "", *(line_mark(table, line) for line in source_lines(table))]


def _code(table: FunctionTable) -> list[str]:
    """The code of each line, and what failed there."""
    return [
        f"{text}  {note}" if (note := failure_note(table, line)) else text
        for line, text in source_lines(table).items()
    ]


def _below(table: FunctionTable) -> list[str]:
    notes = table_notes(table)
    return ["", *notes] if notes else []


def _right_aligned(texts: Sequence[str]) -> list[str]:
    width = max(map(len, texts))
    return [text.rjust(width) for text in texts]
