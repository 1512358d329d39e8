"""The lines of profiled functions on a page: numbers, a heat gutter, and code."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Final

from .._common.text.prose_size import prose_size, signed
from .._common.text.quoted import visible
from ..profiles.ranking import PEAK, added_by_call, peak_of
from .notes import line_mark, line_notes
from .page import Fragment, fill
from .tables import cell, failure_note, is_of_bytes, line_remarks, source_lines

if TYPE_CHECKING:
    from markupsafe import Markup

    from ..records import FunctionTable, LineEntry

_IN_EVERY_TABLE: Final = frozenset({PEAK, "peak", "kept", "freed", "hits"})
_DEFAULT_COLUMNS: Final = (PEAK, "reserved_bytes.all.peak")
"""Of a run that asked for no columns: every table has the peak, the page's head the other one."""

_MINUS: Final = "\u2212"
_ALLOCATED: Final = "active_bytes.all.allocated"
_MOST_ROWS: Final = 400
"""Rows of a table; a longer function has several, and a browser draws those in sight."""


_DENSE: Final = 28
"""Letters that a narrow column of code has room for: most columns have more."""


@dataclass(frozen=True, slots=True)
class MeasuredTable:
    """The table of a function, with what its lines did."""

    table: FunctionTable
    entries: Mapping[int, LineEntry]  # its lines, by number
    # bytes that a hit of each line added, without the profiled functions that it called
    own: Mapping[int, int]

    @property
    def adds(self) -> int:
        """Bytes that a call of the function added, without the profiled functions it called."""
        lines = {line: (entry.hits, self.own[line]) for line, entry in self.entries.items()}
        return added_by_call(self.table.function, lines)

    @property
    def peak(self) -> int:
        """Most active bytes while one of its lines ran."""
        return max(map(peak_of, self.entries.values()), default=0)

    @property
    def is_idle(self) -> bool:
        """True if no line allocated or freed anything, and no line has a note."""
        return not (
            self.table.approximations
            or self.table.failed
            or any(self.own.values())
            or any(entry.stats.get(_ALLOCATED) for entry in self.entries.values())
        )


def anchor_of(number: int, tables: Sequence[MeasuredTable], line: tuple[str, int]) -> str:
    """The id of a line on the page; empty if it is in none of the tables."""
    file, at = line
    for place, measured in enumerate(tables):
        if measured.table.function.filename == file and at in measured.entries:
            return f"d{number}-{place}-{at}"
    return ""


def fragment(
    number: int,
    tables: Sequence[MeasuredTable],
    columns: Sequence[str],
    peak: tuple[str, int] | None,
) -> Fragment:
    """The functions of one device as a part of a page."""
    asked = () if tuple(columns) == _DEFAULT_COLUMNS else columns
    shown_columns = {
        name: place
        for place, name in enumerate(columns)
        if name in asked and name not in _IN_EVERY_TABLE
    }
    most = max((abs(size) for table in tables for size in table.own.values()), default=0)
    functions = [
        (
            f"d{number}-{place}",
            measured,
            list(_rows(measured, shown_columns, most, peak)),
            _notes(measured.table),
        )
        for place, measured in enumerate(tables)
    ]
    functions.sort(key=lambda function: _order(function[1]))
    html = fill(
        "source_view.html",
        number=number,
        functions=functions,
        columns=[(name, name.replace(".", " ")) for name in shown_columns],
        most_rows=_MOST_ROWS,
        balance=balance,
    )
    return Fragment(html, "source_view.css", ("source_view.js", "sortable.js"))


def _order(measured: MeasuredTable) -> tuple[bool, int, int]:
    return measured.is_idle, -measured.adds, -measured.peak


def _notes(table: FunctionTable) -> list[tuple[int, str]]:
    return [
        (line, note)
        for line, approximations in table.approximations.items()
        for note in line_notes(approximations)
    ]


def _rows(
    measured: MeasuredTable, columns: Mapping[str, int], most: int, peak: tuple[str, int] | None
) -> Iterator[dict[str, Any]]:
    table = measured.table
    file = table.function.filename
    lines = _without_gaps(source_lines(table), measured.entries)
    for (line, _), code in zip(lines.items(), highlighted(list(lines.values())), strict=True):
        entry = measured.entries.get(line)
        own = measured.own.get(line, 0)
        cells = None  # the line was not measured
        if entry is not None:
            row = table.rows.get(line, ())
            cells = [
                _value(PEAK, peak_of(entry)),
                _value("kept", entry.kept),
                _value("freed", entry.freed),
            ]
            cells += [_value(name, row[place]) if row else "" for name, place in columns.items()]
            cells.append(str(entry.hits))
        is_peak = (file, line) == peak and entry is not None
        # The length of the bar is in percent of the longest one.
        share = f"{100 * abs(own) / max(most, 1):.0f}"
        yield {
            "number": line,
            "mark": line_mark(table, line),
            "said": "; ".join(line_remarks(table, line)),
            "cells": cells,
            "own": signed(own, minus=_MINUS) if own else "",
            "bar": f"--{'k' if own > 0 else 'f'}:{share}" if own else "",
            "code": code,
            "is_dense": _is_dense(lines[line]),
            "failure": failure_note(table, line),
            "is_peak": is_peak,
            # The script gives other lines their addresses.
            "is_linked": is_peak or line in table.approximations,
        }


def _is_dense(code: str) -> bool:
    """True if a browser would break a line between its indentation and its first word."""
    word = code.lstrip()
    indentation = len(code) - len(word)
    return bool(indentation and word) and indentation + len(word.split()[0]) > _DENSE


def balance(added: int) -> str:
    """Bytes that a function adds or, where it frees more, those.

    >>> balance(2**20), balance(-512)
    ('adds 1.0 MiB', 'frees 512 B')
    """
    return f"frees {prose_size(-added)}" if added < 0 else f"adds {prose_size(added)}"


def _without_gaps(lines: Mapping[int, str], measured: Collection[int]) -> dict[int, str]:
    """The lines, of each group of empty ones the first, and none where code is folded."""
    kept: dict[int, str] = {}
    before = 0
    for line, text in lines.items():
        follows_code = bool(kept) and before == line - 1 and bool(lines[before])
        if text or line in measured or follows_code:
            kept[line] = text
        before = line
    return kept


def _value(column: str, value: float | None) -> str:
    """A cell of a column that was asked for; empty for zero."""
    if not value:
        return ""
    return signed(int(value), minus=_MINUS) if is_of_bytes(column) else cell(column, value)


def highlighted(lines: Sequence[str]) -> list[Markup]:
    """Lines of code, each complete in itself."""
    from markupsafe import Markup

    line_parts: list[list[str]] = [[]]
    for tag, text in _pieces("\n".join(visible(line.rstrip(), "\t") for line in lines)):
        for number, part in enumerate(text.split("\n")):
            if number:
                line_parts.append([])
            if part:
                code = escape(part, quote=False)
                line_parts[-1].append(f"<{tag}>{code}</{tag}>" if tag and part.strip() else code)
    return [Markup("".join(parts)) for parts in line_parts]


def _pieces(code: str) -> Iterator[tuple[str, str]]:
    """Pieces of code with their elements; those of one element that follow each other are one."""
    from pygments.lexers.python import PythonLexer
    from pygments.token import Comment, Keyword, Name, Operator, String

    elements: list[tuple[Any, str]] = [
        (Comment, "i"),
        (String, "u"),
        (Keyword, "b"),
        (Operator.Word, "b"),
        (Name.Function, "var"),
        (Name.Class, "var"),
    ]
    last, gathered = "", ""
    for kind, text in PythonLexer(stripnl=False, ensurenl=False).get_tokens(code):
        tag = next((tag for kinds, tag in elements if kind in kinds), "")
        if tag != last and gathered:
            yield last, gathered
            gathered = ""
        last = tag
        gathered += text
    if gathered:
        yield last, gathered
