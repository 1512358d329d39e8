"""Tables of lines: columns of values, line numbers, and the code behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from .approximations import line_mark
from .cells import column_parts, failure_note, source_lines
from .styled_rows import CODE, Row, highlighted

if TYPE_CHECKING:
    from ..records import FunctionTable

_LEAST_CODE_WIDTH: Final = 24
_LINE: Final = "line"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of values."""

    name: str
    cells: Mapping[int, tuple[str, str]]  # text and style, by the number of the line
    width: int


def least_width(name: str, texts: Sequence[str]) -> int:
    """Characters that a column needs."""
    return max(map(len, (*column_parts(name), *texts)))


def number_width(lines: Sequence[int]) -> int:
    """Characters that line numbers need."""
    return max(map(len, (_LINE, *map(str, lines))))


def line_pieces(table: FunctionTable, numbers: int, *, in_colour: bool) -> Callable[[int], Row]:
    """The pieces of a line behind its values: number, mark, code, and what failed there."""
    lines = source_lines(table)
    code: Sequence[Any] = [*lines.values()]
    by_line = dict(zip(lines, highlighted([*code]) if in_colour else code, strict=True))

    def pieces(line: int) -> Row:
        mark = line_mark(table, line) or " "
        row = [(str(line).rjust(numbers), "cyan"), (mark, "bold yellow"), (" ", "")]
        note = failure_note(table, line)
        failure = [(f"  {note}", "bold red")] if note else []
        return [*row, (by_line.get(line, ""), CODE), *failure]

    return pieces


def table_rows(
    columns: Sequence[Column],
    lines: Sequence[int],
    behind: Callable[[int], Row],
    numbers: int,
    width: int | None,
) -> Iterator[Row]:
    """The lines, split by columns into pieces that leave room for the code in a terminal."""
    room = 10**9 if width is None else width - numbers - 2 - _LEAST_CODE_WIDTH
    for place, group in enumerate(fitting([one.width + 1 for one in columns], room)):
        if place:
            yield []
        shown = [columns[number] for number in group]
        yield from _heads(shown, numbers)
        for line in lines:
            cells = [(one.width, *one.cells.get(line, ("", ""))) for one in shown]
            yield [*((f"{text.rjust(room)} ", style) for room, text, style in cells), *behind(line)]


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


def _heads(columns: Sequence[Column], numbers: int) -> Iterator[Row]:
    parts = [(one.width, column_parts(one.name)) for one in columns]
    for number in range(3):
        names = "".join(f"{part[number].rjust(width)} " for width, part in parts)
        # Heads of one part, such as hits, need no second and third row.
        if not number:
            yield [(f"{names}{_LINE.rjust(numbers)}  code", "dim")]
        elif names.strip():
            yield [(names.rstrip(), "dim")]
