"""Tables of lines: their heads, the texts of cells, line numbers, and the code behind them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from .._common.text.prose_size import prose_size, signed
from .._common.text.shared_paths import shown
from ..columns import Column, Unit, column_of
from ..records import FunctionInfo, FunctionTable, Report
from ..utils import readable_size
from .notes import line_mark, line_notes, texts
from .rows import CODE, WIDTH, Piece, Row, highlighted


def column_parts(column: str) -> tuple[str, str, str]:
    """The three rows of a column's head.

    >>> column_parts("active_bytes.all.peak")
    ('active_bytes', 'all', 'peak')
    >>> column_parts("peak")
    ('peak', '', '')
    >>> column_parts("hits")
    ('hits', '', '')
    """
    first, second, third = (*column.split(".", 2), "", "")[:3]
    return first, second, third


@lru_cache(maxsize=4096, typed=True)
def cell(column: str, value: float | None) -> str:
    """A value as people read it: bytes with their unit, seconds as ms, counts as they are.

    >>> cell("delta", -512), cell("time", 0.0125), cell("segment.all.peak", 3)
    ('-512.00B', '12.500ms', '3')
    """
    if value is None:
        return ""
    unit = _column(column).unit
    if unit is Unit.BYTES:
        return readable_size(value)
    return f"{value * 1000:.3f}ms" if unit is Unit.SECONDS else str(value)


def prose_cell(column: str, value: float | None) -> str:
    """The same where sentences stand beside it: sizes as they have them, and a short zero.

    >>> prose_cell("delta", -512), prose_cell("peak", 3 << 20), prose_cell("delta", 0)
    ('-512 B', '3.0 MiB', '0')
    """
    if value == 0:
        return "0"
    if value is None or not is_of_bytes(column):
        return cell(column, value)
    return signed(value)


def is_of_bytes(column: str) -> bool:
    """True if the values of a column are bytes.

    >>> is_of_bytes("reserved_bytes.all.peak"), is_of_bytes("peak max"), is_of_bytes("hits")
    (True, True, False)
    """
    return _column(column).unit is Unit.BYTES


def _column(head: str) -> Column:
    return column_of(head.partition(" ")[0])  # a merged profile has "peak max" and "peak min"


def source_lines(table: FunctionTable) -> dict[int, str]:
    """Every line that a table shows, in order, with its code, empty where there is no source."""
    function = table.function
    code = dict(enumerate(function.source or (), function.first_line))
    numbers = sorted({*table.rows, *(code.keys() - function.folded_lines())})
    return {line: code.get(line, "").rstrip() for line in numbers}


def failure_note(table: FunctionTable, line: int) -> str:
    """The text behind the code of a line at which a GPU ran out of memory; empty for others."""
    asked = table.failed.get(line)
    return "" if asked is None else f"# out of memory: asked for {prose_size(asked)}"


def line_remarks(table: FunctionTable, line: int) -> list[str]:
    """The failure at a line, and everything that a simulation did not know there."""
    failure = failure_note(table, line).removeprefix("# ")
    return [*filter(None, [failure]), *line_notes(table.approximations.get(line, ()))]


def column_ranges(report: Report) -> list[tuple[float, float]]:
    """The least and the largest value of each column over all tables, zero counted among them."""
    rows = [values for table in report.tables for values in table.rows.values()]
    values = [[row[place] or 0 for row in rows] for place in range(len(report.columns))]
    return [(min([0, *column]), max([0, *column])) for column in values]


def headings(report: Report) -> list[str]:
    """A heading for each table, with place and device where the name does not tell."""
    functions: defaultdict[str, set[FunctionInfo]] = defaultdict(set)
    for table in report.tables:
        functions[table.function.qual_name].add(table.function)
    several_devices = len({table.device.name for table in report.tables}) > 1
    lines = []
    for table in report.tables:
        function, details = table.function, []
        if len(functions[function.qual_name]) > 1:
            details.append(f"{shown(function.filename)}:{function.first_line}")
        if several_devices:
            details.append(table.device.name)
        lines.append(function.qual_name + (f" ({', '.join(details)})" if details else ""))
    return lines


def no_data(report: Report) -> tuple[str, ...]:
    """The lines of a report without tables: its first note is the reason."""
    reason, *others = texts(report.notes) or ("nothing was recorded",)
    return f"No data collected: {reason}", *others


_LEAST_CODE_WIDTH: Final = 24
_LEAST_CODE_WIDTH_AT_80: Final = 30
_LINE: Final = "line"

Text = Callable[[str, "float | None"], str]
"""The text of a value in a column."""


def widths_of(
    names: Sequence[str], tables: Sequence[tuple[FunctionTable, Sequence[int]]], text: Text
) -> list[int]:
    """Characters that each column needs over some lines of functions, then the line numbers."""
    rows = [table.rows[line] for table, lines in tables for line in lines if line in table.rows]
    numbers = [str(line) for _, lines in tables for line in lines]
    texts = [
        (*column_parts(name), *(text(name, row[place]) for row in rows))
        for place, name in enumerate(names)
    ]
    return [max(map(len, column)) for column in (*texts, (_LINE, *numbers))]


def table_rows(
    table: FunctionTable,
    names: Sequence[str],
    lines: Sequence[int],
    widths: Sequence[int],
    width: int | None,
    text: Text,
    style: Callable[[int, float | None], str],
    ends: Mapping[int, Piece] | None = None,
) -> Iterator[Row]:
    """Lines of a function, split by columns into pieces that leave room for code in a terminal."""
    *columns, numbers = widths
    code = source_lines(table)
    coloured = code if width is None else _coloured(code)
    blank = (None,) * len(names)
    room = 10**9 if width is None else width - numbers - 2 - _least_code_width(width)
    for number, group in enumerate(fitting([column + 1 for column in columns], room)):
        if number:
            yield []
        yield from _heads([(names[place], columns[place]) for place in group], numbers)
        for line in lines:
            row = table.rows.get(line, blank)
            pieces: list[Piece] = [
                (
                    f"{text(names[column], row[column]).rjust(columns[column])} ",
                    style(column, row[column]),
                )
                for column in group
            ]
            mark = line_mark(table, line) or " "
            pieces += [(str(line).rjust(numbers), "cyan"), (mark, "bold yellow"), (" ", "")]
            remarks = _behind_code(table, line, ends or {})
            before = sum(len(piece) for piece, _ in pieces)
            pieces.append((coloured.get(line, ""), CODE))
            if width is None or _has_room(code.get(line, ""), remarks, before, width):
                yield [*pieces, *remarks]
            else:
                yield pieces
                yield from _below(remarks, before, width)


def _coloured(code: Mapping[int, str]) -> dict[int, Any]:
    return dict(zip(code, highlighted([*code.values()]), strict=True))


def _behind_code(table: FunctionTable, line: int, ends: Mapping[int, Piece]) -> list[Piece]:
    """The remarks behind the code of a line: where memory ran out, and what else ends it."""
    note = failure_note(table, line)
    failure = [(f"  {note}", "bold red")] if note else []
    return [*failure, *([ends[line]] if line in ends else [])]


def _least_code_width(width: int) -> int:
    return _LEAST_CODE_WIDTH if width < WIDTH else _LEAST_CODE_WIDTH_AT_80


def _has_room(code: str, remarks: Sequence[Piece], before: int, width: int) -> bool:
    """True if code with remarks behind it is whole, or cut where it can still be recognised."""
    from rich.cells import cell_len

    room = width - before - sum(len(text) for text, _ in remarks)
    return not remarks or room >= min(cell_len(code), _least_code_width(width))


def _below(remarks: Sequence[Piece], indent: int, width: int) -> Iterator[Row]:
    """Remarks under the code that they belong to, further left where they are long."""
    length = sum(len(text) for text, _ in remarks)
    together = [remarks] if length <= width else [[remark] for remark in remarks]
    for row in together:
        length = sum(len(text) for text, _ in row)
        yield [(" " * max(0, min(indent, width - length)), ""), *row]


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


def _heads(columns: Sequence[tuple[str, int]], numbers: int) -> Iterator[Row]:
    for number in range(3):
        names = "".join(f"{column_parts(name)[number].rjust(width)} " for name, width in columns)
        # Heads of one part, such as hits, need no second and third row.
        if not number:
            yield [(f"{names}{_LINE.rjust(numbers)}  code", "dim")]
        elif names.strip():
            yield [(names.rstrip(), "dim")]
