"""The report of a run: its peaks, whether it fit, then the functions that add most."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, TextIO

from .._common.prose_size import prose_size
from .._common.quoted import printable
from .approximations import line_mark
from .cells import cell, column_parts, failure_note, source_lines
from .rows import WIDTH, code_of, fitted, place_of, wrapped
from .sections import section_lines
from .terminal import fitting, is_colourful
from .verdict import sentence

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from ..profiles.overview import Failure, Headline, Overview, Place, ShownFunction
    from ..records import FunctionTable

Segment = tuple[str, str]
"""A piece of a row, and its style: one of rich, empty for plain text, or ``code``."""

Row = list[Segment]

_LEAST_CODE_WIDTH: Final = 24
_CATEGORIES: Final = 3
_PEAK: Final = "<- peak"
_CODE: Final = "code"


def render(overview: Overview) -> str:
    """The report as plain text."""
    return "".join(_plain(row) + "\n" for row in _rows(overview, None))


def write(overview: Overview, stream: TextIO) -> None:
    """Write the report to a stream in the form that suits it."""
    if not is_colourful(stream):
        stream.write(render(overview))
        return
    from rich.console import Console

    _print(overview, Console(file=stream))


def _plain(row: Row) -> str:
    text = "".join(piece for piece, _ in row)
    return text.rstrip() if any(style == _CODE for _, style in row) else text


def _print(overview: Overview, console: Console) -> None:
    notes = len(overview.notes)
    rows = list(_rows(overview, console.width))
    for number, row in enumerate(rows):
        text = _styled(row, console.width)
        if number >= len(rows) - notes:
            console.print(text)  # wrapped
        else:
            console.print(text, no_wrap=True, overflow="ellipsis", crop=True)


def _styled(row: Row, width: int) -> Text:
    """A row in colour; what follows the code stays, and the code is cut for it."""
    from rich.text import Text

    text = Text()
    for place, (piece, style) in enumerate(row):
        if style != _CODE:
            text.append(piece, style)
            continue
        room = width - len(text) - sum(len(after) for after, _ in row[place + 1 :])
        code = _highlighted(piece)
        if len(row) > place + 1:
            code.truncate(max(room, 0), overflow="ellipsis")
        text.append(code)
    text.rstrip()
    return text


def _highlighted(code: str) -> Text:
    from rich.syntax import Syntax

    text = Syntax("", "python", theme="ansi_dark").highlight(code)
    text.rstrip()
    return text


def _rows(overview: Overview, width: int | None) -> Iterator[Row]:
    """The rows of the report."""
    room = WIDTH if width is None else min(width, WIDTH)
    for headline in overview.headlines:
        yield from _headline(headline, room)
        if headline.verdict is not None:
            yield from ([(line, "")] for line in wrapped(sentence(headline.verdict), width=room))
    if overview.failure is not None:
        yield from ([(one, "bold red")] for one in fitted(_failed(overview.failure), room))
    several = len({one.table.device.name for one in overview.functions}) > 1
    widths = _widths(overview)
    for function in overview.functions:
        yield []
        yield from _head(function.table, several, width)
        yield from _table(function, overview.columns, widths, width)
    folded = _folded(overview)
    if folded:
        yield []
        yield from ([(one, "dim")] for line in folded for one in fitted(line, room))
    for section in overview.sections:
        heading, *lines = section_lines(section)
        yield []
        yield [(heading, "bold")]
        yield from ([(line, "")] for line in lines)
    if overview.notes:
        yield []
        yield from ([(note, "")] for note in overview.notes)


# The headlines


def _headline(headline: Headline, room: int) -> Iterator[Row]:
    measured = headline.measured
    name = measured.device.name
    kind = _kind(headline)
    if not measured.peak_active:
        nothing = f"no memory was in use on {name}{kind}"
        yield from ([(line, "bold")] for line in fitted(nothing, room))
        return
    bound = "at least " * headline.is_lower_bound
    share = (
        f", {_percent(measured.peak_active, measured.capacity)} of " if _is_gpu(headline) else ""
    )
    size = prose_size(measured.capacity) if share else ""
    peak = f"peak {bound}{prose_size(measured.peak_active)} on {name}{share}{size}{kind}"
    yield from ([(line, "bold")] for line in wrapped(peak, "", room))
    yield from ([(one, "")] for line in _where(headline) for one in fitted(line, room))
    if headline.categories:
        yield from ([(line, "")] for line in wrapped(_held(headline), width=room))


def _is_gpu(headline: Headline) -> bool:
    """True if the capacity is that of a device. The host has swap space too."""
    return bool(headline.measured.capacity) and headline.measured.device.name != "cpu"


def _kind(headline: Headline) -> str:
    device = headline.measured.device
    if not device.simulated:
        return printable(f" ({device.description})" if device.description else "")
    # The name of a simulated GPU that has none but its size says no more.
    name = "" if device.description.startswith("Simulated GPU") else f" {device.description}"
    return printable(f" (simulated{name})")


def _where(headline: Headline) -> list[str]:
    place = headline.place
    if place is None:
        return ["  outside of the profiled lines"]
    if headline.is_in_line:
        code = code_of(place.function, place.line)
        return [f"  at {_at(place)}{': ' * bool(code)}{code}"]
    return [
        "  outside of the profiled lines, of which the highest is",
        f"  {prose_size(headline.place_peak)} at {_at(place)}",
    ]


def _at(place: Place) -> str:
    file, _, name = place_of(place.function, place.line).partition("  ")
    return f"{file} in {name}"


def _held(headline: Headline) -> str:
    shares = headline.categories
    named = [f"{prose_size(one.size)} {one.name}" for one in shares[:_CATEGORIES]]
    rest = sum(one.size for one in shares[_CATEGORIES:])
    return f"held by {', '.join([*named, *([f'{prose_size(rest)} more'] if rest else [])])}"


def _failed(failure: Failure) -> str:
    asked = "" if failure.asked is None else f", asked for {prose_size(failure.asked)}"
    place = "outside of the profiled lines" if failure.place is None else _at(failure.place)
    where = place if failure.place is None else f"at {place}"
    return f"out of memory {where}{asked}"


def _percent(part: int, whole: int) -> str:
    share = part / whole * 100
    if share < 0.1:
        return "less than 0.1 %"
    return f"{share:.1f} %" if share < 10 else f"{share:.0f} %"


# The functions


def _head(table: FunctionTable, several: bool, width: int | None) -> Iterator[Row]:
    """The name of a function and its place, on a second line where a terminal is too narrow."""
    function = table.function
    file = f"{os.path.basename(function.filename)}:{function.first_line}"
    device = f"  on {table.device.name}" if several else ""
    name, place = f"## {printable(function.qual_name)}", f"  {printable(file)}{device}"
    if width is None or len(name) + len(place) <= width:
        yield [(name, "bold"), (place, "dim")]
    else:
        yield [(name, "bold")]
        yield [(place, "dim")]


def _widths(overview: Overview) -> list[int]:
    """Of each column over all functions, then of the line numbers."""
    widths = [max(map(len, column_parts(column))) for column in overview.columns]
    lines = len("line")
    for function in overview.functions:
        for line in _lines(function):
            lines = max(lines, len(str(line)))
            for place, value in enumerate(function.table.rows.get(line, ())):
                text = _cell(overview.columns[place], value)
                widths[place] = max(widths[place], len(text))
    return [*widths, lines]


def _table(
    function: ShownFunction, columns: Sequence[str], widths: Sequence[int], width: int | None
) -> Iterator[Row]:
    """The lines, split by columns into pieces that leave room for the code in a terminal."""
    room = 10**9 if width is None else width - widths[-1] - 2 - _LEAST_CODE_WIDTH
    for number, places in enumerate(fitting([one + 1 for one in widths[:-1]], room)):
        if number:
            yield []
        yield from _heads(
            [*(columns[place] for place in places), "line"],
            [*(widths[place] for place in places), widths[-1]],
        )
        code = source_lines(function.table)
        blank = (None,) * len(columns)
        for line in _lines(function):
            values = function.table.rows.get(line, blank)
            row: Row = []
            for place in places:
                text = _cell(columns[place], values[place]).rjust(widths[place])
                row.append((f"{text} ", "" if values[place] else "dim"))
            yield [*row, *_line(function, line, code.get(line, ""), widths[-1])]


def _lines(function: ShownFunction) -> Sequence[int]:
    return [*source_lines(function.table)] if function.lines is None else function.lines


def _heads(columns: Sequence[str], widths: Sequence[int]) -> Iterator[Row]:
    parts = [column_parts(column) for column in columns]
    for number in range(3):
        names = [part[number] for part in parts]
        if number and not any(names):
            continue
        heads = " ".join(name.rjust(one) for name, one in zip(names, widths, strict=True))
        yield [(heads if number else f"{heads}  code", "dim")]


def _line(function: ShownFunction, line: int, code: str, width: int) -> Row:
    """Number, mark, code, and what stands behind it."""
    row: Row = [
        (str(line).rjust(width), "cyan"),
        (line_mark(function.table, line) or " ", "bold yellow"),
        (" ", ""),
        (code, _CODE),
    ]
    note = failure_note(function.table, line)
    if note:
        row.append((f"  {note}", "bold red"))
    if line == function.peak_line:
        row.append((f"  {_PEAK}", "bold magenta"))
    return row


def _cell(column: str, value: float | None) -> str:
    """A value as tables have it, but for zero: what is left stands out."""
    return "0" if value == 0 else cell(column, value)


# What is left out


def _folded(overview: Overview) -> list[str]:
    lines = []
    more = _counted(overview.more_functions, overview.more_lines)
    if more:
        lines.append(f"{more} more: a larger --top shows them")
    idle = _counted(overview.idle_functions, overview.idle_lines)
    if idle:
        lines.append(f"{idle} added nothing: --all shows them")
    return lines


def _counted(functions: int, lines: int) -> str:
    """Functions and lines, of which there are any.

    >>> _counted(12, 1), _counted(1, 0), _counted(0, 0)
    ('12 functions and 1 line', '1 function', '')
    """
    counts = [(functions, "function"), (lines, "line")]
    return " and ".join(f"{count:,} {name}{'s' * (count != 1)}" for count, name in counts if count)
