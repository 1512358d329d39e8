"""Reports as text, plain or in a terminal: tables, and that of a run with its peaks first."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Final, TextIO

from .._common.process.ipython import file_name
from .._common.text.prose_size import counted, prose_size
from .._common.text.quoted import printable, visible
from ..profiles.overview import Failure, FunctionLine, Headline, Overview, ShownFunction
from ..records import FunctionTable, Report, Section
from .notes import table_notes, texts
from .rows import (
    HEADING,
    NOTE,
    WIDTH,
    Row,
    code_of,
    fitted,
    place as line_at,
    place_of,
    plain_text,
    section_lines,
    shares_text,
    source_line,
    wrapped,
    write_rows,
)
from .run_notes import sentence
from .tables import (
    cell,
    column_ranges,
    headings,
    no_data,
    prose_cell,
    source_lines,
    table_rows,
    widths_of,
)

_CATEGORIES: Final = 3
_BELOW: Final = 3
"""Lines of libraries that are named below a line of the program."""
_PEAK: Final = ("  <- peak", "bold magenta")


def render(report: Report | Overview) -> str:
    """The tables with their notes, sections, then notes; or the report of a run."""
    return plain_text(_rows(report, None))


def write(report: Report | Overview, stream: TextIO) -> None:
    """Write a report to a stream in the form that suits it."""
    if isinstance(report, Report) and not report.tables:
        stream.write(render(report))
    else:
        write_rows(partial(_rows, report), stream)


def write_headline(headlines: Sequence[Headline], failure: Failure | None, stream: TextIO) -> None:
    """Write the peaks of a run, their verdicts, and where memory ran out."""
    write_rows(partial(_opening, headlines, failure), stream)


def _rows(report: Report | Overview, width: int | None) -> Iterator[Row]:
    if isinstance(report, Report):
        return _rows_of_tables(report, width)
    return _rows_of_run(report, width)


def _rows_of_tables(report: Report, width: int | None) -> Iterator[Row]:
    if not report.tables:
        yield from _styled(no_data(report), NOTE)
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
        yield []
        yield from _section(section, HEADING)
    yield from _notes(texts(report.notes) if report.tables else ())


def _section(section: Section, style: str) -> Iterator[Row]:
    yield from ([], [(f"## {section.title}", style)], [])
    yield from _styled(section_lines(section))


def _notes(notes: Sequence[str]) -> Iterator[Row]:
    if notes:
        yield []
    yield from _styled(notes, NOTE)


def _styled(lines: Iterable[str], style: str = "") -> Iterator[Row]:
    return ([(line, style)] for line in lines)


# The report of a run


def _rows_of_run(overview: Overview, width: int | None) -> Iterator[Row]:
    room = _room(width)
    yield from _opening(overview.headlines, overview.failure, width)
    several = len({function.table.device.name for function in overview.functions}) > 1
    tables = [(function.table, _lines(function)) for function in overview.functions]
    widths = widths_of(overview.report.columns, tables, prose_cell)
    for function, (table, lines) in zip(overview.functions, tables, strict=True):
        yield []
        yield from _head(table, several, width)
        ends = {} if function.peak_line is None else {function.peak_line: _PEAK}
        yield from table_rows(
            table, overview.report.columns, lines, widths, width, prose_cell, _style, ends
        )
    more = _functions_and_lines(overview.more_functions, overview.more_lines)
    idle = _functions_and_lines(overview.idle_functions, overview.idle_lines)
    folded = [f"{more} more: a larger --top shows them"] * bool(more)
    is_used = any(headline.measured.peak_active for headline in overview.headlines)
    folded += [f"{idle} added nothing: --all shows them"] * bool(idle and is_used)
    if folded:
        yield []
        yield from (row for line in folded for row in _styled(fitted(line, room), "dim"))
    for section in overview.report.sections:
        yield from _section(section, "bold")
    yield from _notes(texts(overview.report.notes))


# The headlines


def _room(width: int | None) -> int:
    return WIDTH if width is None else min(width, WIDTH)


def _opening(
    headlines: Sequence[Headline], failure: Failure | None, width: int | None
) -> Iterator[Row]:
    room = _room(width)
    for headline in headlines:
        yield from _headline(headline, room)
        if headline.verdict is not None:
            yield from _styled(wrapped(f"  {sentence(headline.verdict)}", room))
        if growth := _growth(headline):
            yield from _styled(wrapped(growth, room))
    if failure is not None:
        failed = failure.place
        where = "outside of the profiled lines" if failed is None else f"at {_at(failed)}"
        asked = "" if failure.asked is None else f", asked for {prose_size(failure.asked)}"
        yield from _styled(wrapped(f"out of memory {where}{asked}", room), "bold red")


def _headline(headline: Headline, room: int) -> Iterator[Row]:
    measured = headline.measured
    name = measured.device.name
    kind = _kind(headline)
    if not measured.peak_active:
        yield from _styled(fitted(f"no memory was in use on {name}{kind}", room), "bold")
        return
    bound = f"{headline.bound} " if headline.bound else ""
    share = ""
    if measured.capacity and name != "cpu":  # the host has swap space too
        percent = _percent(measured.peak_active, measured.capacity)
        share = f", {percent} of {prose_size(measured.capacity)}"
    at_most = 0 if bound else measured.peak_at_most or 0
    more = f" to {prose_size(at_most)}" if at_most > measured.peak_active else ""
    peak = f"peak {bound}{prose_size(measured.peak_active)}{more} on {name}{share}{kind}"
    yield from _styled(wrapped(peak, room), "bold")
    for line in _where(headline):
        yield from _styled(fitted(line, room))
    if headline.categories:
        yield from _styled(
            wrapped(f"  held by {shares_text(headline.categories, _CATEGORIES)}", room)
        )
    for line in _held_lines(headline):
        yield from _styled(fitted(line, room))
    if headline.unprofiled:
        names = " and ".join(
            dict.fromkeys(printable(file_name(line.file)) for line in headline.unprofiled)
        )
        patterns = ",".join(dict.fromkeys(_pattern(line.file) for line in headline.unprofiled))
        most = f"  -f {shlex.quote(visible(patterns))} profiles the lines of {names}"
        yield from _styled(wrapped(most, room))


def _held_lines(headline: Headline) -> Iterator[str]:
    """The lines that hold most of the peak, and below each those of libraries that it calls."""
    if headline.lines:
        yield "  most of it from"
    for line in headline.lines:
        holder = line.holder
        code = printable(source_line(holder.file, holder.line)) if holder.file else ""
        at = line_at(holder.file, holder.line, "" if code else holder.function)
        yield f"  {prose_size(holder.size):>10}  {at.rstrip()}{'  ' * bool(code)}{code}"
        # One line more takes no more room than how many there are.
        rest = line.below[_BELOW:] if len(line.below) > _BELOW + 1 else ()
        for held in line.below[: len(line.below) - len(rest)]:
            at = line_at(held.file, held.line, held.function, " in ")
            yield f"    {prose_size(held.size):>10}  {at}"
        if rest:
            size = prose_size(sum(held.size for held in rest))
            yield f"    {size:>10}  {counted(len(rest), 'other line')} of libraries"


def _growth(headline: Headline) -> str:
    """The memory that a loop leaves; empty if none does."""
    loop, at = headline.growing, headline.growing_place
    if loop is None or at is None:
        return ""
    return (
        f"  grows by {prose_size(loop.rise)} an iteration, {loop.rises:,} times in a row:"
        f" the loop at {_at(at)}"
    )


def _pattern(file: str) -> str:
    """All functions of a file as ``-f`` names them, wherever the program imports it from."""
    folder, name = os.path.split(os.path.splitext(file)[0])
    return f"*{os.path.basename(folder) if name == '__init__' else name}:*"


def _kind(headline: Headline) -> str:
    device = headline.measured.device
    if not device.simulated:
        return printable(f" ({device.description})" if device.description else "")
    # The name of a simulated GPU that has none but its size says no more.
    name = "" if device.description.startswith("Simulated GPU") else f" {device.description}"
    return printable(f" (simulated{name})")


def _where(headline: Headline) -> list[str]:
    line = headline.place
    if line is None:
        return ["  outside of the profiled lines"]
    if headline.is_in_line:
        code = code_of(line.function, line.line)
        return [f"  at {_at(line)}{': ' * bool(code)}{code}"]
    return [
        "  outside of the profiled lines, of which the highest is",
        f"  {prose_size(headline.place_peak)} at {_at(line)}",
    ]


def _at(line: FunctionLine) -> str:
    file, _, name = place_of(line.function, line.line).partition("  ")
    return f"{file} in {name}"


def _percent(part: int, whole: int) -> str:
    """A share with a digit behind the point below 10 %.

    >>> _percent(1, 2000), _percent(99, 1000), _percent(104, 1000)
    ('less than 0.1%', '9.9%', '10%')
    """
    share = part / whole * 100
    if share < 0.1:
        return "less than 0.1%"
    return f"{share:.1f}%" if share < 10 else f"{share:.0f}%"


# The functions


def _head(table: FunctionTable, several: bool, width: int | None) -> Iterator[Row]:
    """The name of a function and its place, on a second line where a terminal is too narrow."""
    function = table.function
    file = f"{file_name(function.filename)}:{function.first_line}"
    device = f"  on {table.device.name}" if several else ""
    name, place = f"## {printable(function.qual_name)}", f"  {printable(file)}{device}"
    if width is None or len(name) + len(place) <= width:
        yield [(name, "bold"), (place, "dim")]
    else:
        yield [(name, "bold")]
        yield [(place, "dim")]


def _lines(function: ShownFunction) -> Sequence[int]:
    return [*source_lines(function.table)] if function.lines is None else function.lines


def _style(_place: int, value: float | None) -> str:
    return "" if value else "dim"


def _functions_and_lines(functions: int, lines: int) -> str:
    """The numbers of both; empty without any.

    >>> [_functions_and_lines(*numbers) for numbers in ((12, 1), (1, 0), (0, 0))]
    ['12 functions and 1 line', '1 function', '']
    """
    counts = [(functions, "function"), (lines, "line")]
    return " and ".join(counted(count, noun) for count, noun in counts if count)
