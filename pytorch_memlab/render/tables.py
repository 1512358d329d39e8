"""Tables of lines: columns of values, line numbers, and the code behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from .cells import column_parts, failure_note, source_lines
from .notes import line_mark
from .styled_rows import CODE, Piece, Row, highlighted

if TYPE_CHECKING:
    from ..records import FunctionTable

_LEAST_CODE_WIDTH: Final = 24
_LINE: Final = "line"

Text = Callable[[str, "float | None"], str]
"""The text of a value in a column."""


def widths_of(
    names: Sequence[str], shown: Sequence[tuple[FunctionTable, Sequence[int]]], text: Text
) -> list[int]:
    """Characters that each column needs over some lines of functions, then the line numbers."""
    rows = [table.rows[line] for table, lines in shown for line in lines if line in table.rows]
    numbers = [str(line) for _, lines in shown for line in lines]
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
    coloured: Sequence[Any] = [*code.values()]
    if width is not None:
        coloured = highlighted([*code.values()])
    code_of = dict(zip(code, coloured, strict=True))
    blank = (None,) * len(names)
    room = 10**9 if width is None else width - numbers - 2 - _LEAST_CODE_WIDTH
    for number, group in enumerate(fitting([one + 1 for one in columns], room)):
        if number:
            yield []
        yield from _heads([(names[place], columns[place]) for place in group], numbers)
        for line in lines:
            row = table.rows.get(line, blank)
            pieces: list[Piece] = [
                (f"{text(names[one], row[one]).rjust(columns[one])} ", style(one, row[one]))
                for one in group
            ]
            mark = line_mark(table, line) or " "
            pieces += [(str(line).rjust(numbers), "cyan"), (mark, "bold yellow"), (" ", "")]
            pieces.append((code_of.get(line, ""), CODE))
            note = failure_note(table, line)
            if note:
                pieces.append((f"  {note}", "bold red"))
            if ends and line in ends:
                pieces.append(ends[line])
            yield pieces


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
