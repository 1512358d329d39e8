"""Rows of text: lines of the program with their code, sections, sentences, and their styles."""

from __future__ import annotations

import linecache
import os
import re
import stat
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, TextIO, TypeAlias

from .._common.process.ipython import file_name
from .._common.text.prose_size import prose_size, signed
from .._common.text.quoted import printable, visible
from ..records import Section

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from ..history.holders import Share
    from ..records import FunctionInfo

WIDTH: Final = 80
_SECTION_VALUE: Final = 13
_LARGEST: Final = 10 * 2**20
"""Bytes of a file of which lines are read."""

_LONGEST_PLACE: Final = 48
_LINE_NUMBER: Final = re.compile(r":\d+\)?$")
_UNIT: Final = re.compile(r"(?<=\d) (?=B|KiB|MiB|GiB|%|calls?)")


def cut(line: str, longest: int = WIDTH) -> str:
    """A line of at most so many columns; some characters take two.

    >>> cut("abcdef", 4), cut("计算机", 5)
    ('abc…', '计算…')
    """
    if len(line) <= longest and line.isascii():
        return line
    from rich.cells import cell_len, set_cell_size

    return line if cell_len(line) <= longest else f"{set_cell_size(line, longest - 1)}…"


def padded(name: str, width: int) -> str:
    """A name of the program in a column of some width, cut where it is longer."""
    return filled(cut(printable(name), width - 1), width)


def filled(text: str, width: int) -> str:
    """A text with spaces up to so many columns.

    >>> filled("abc", 5), filled("计算", 5)
    ('abc  ', '计算 ')
    """
    if text.isascii():
        return text.ljust(width)
    from rich.cells import cell_len

    return text + " " * (width - cell_len(text))


def place_of(function: FunctionInfo, line: int) -> str:
    """A line of a function as people find it."""
    return place(function.filename, line, function.qual_name)


def place(file: str, line: int | None, name: str, between: str = "  ") -> str:
    """A line as people find it, such as ``train.py:12  step``; the name where there is no file."""
    return printable(f"{file_and_line(file, line)}{between}{name}" if file else name)


def file_and_line(file: str, line: int | None, longest: int = _LONGEST_PLACE) -> str:
    """A line of a file, whose name is cut where it is long: the number leads to the line.

    >>> file_and_line("/lib/train.py", 12), file_and_line("/lib/modeling_llama.py", 345, 16)
    ('train.py:12', 'modeling_ll…:345')
    """
    return cut_place(file_name(file) + ("" if line is None else f":{line}"), longest)


def cut_place(text: str, longest: int) -> str:
    """A text of at most so many columns, which keeps the number of a line at its end.

    >>> cut_place("net.blocks.attention (net.py:12)", 20), cut_place("net.blocks.attention", 12)
    ('net.blocks.atte…:12)', 'net.blocks.…')
    """
    number = _LINE_NUMBER.search(text)
    end = number[0] if number else ""
    return cut(text.removesuffix(end), longest - len(end)) + end


def shares_text(shares: Sequence[Share], most: int) -> str:
    """The sizes and the names of the first shares, and the size of the others."""
    rest = sum(share.size for share in shares[most:])
    named = [f"{prose_size(share.size)} {printable(share.name)}" for share in shares[:most]]
    return ", ".join([*named, *([f"{prose_size(rest)} more"] if rest else [])])


def code_of(function: FunctionInfo, line: int) -> str:
    """The code of a line, empty where there is no source."""
    return printable(function.text_of(line).strip())


def source_line(filename: str, line: int | None) -> str:
    """One line of a Python file of usual size or of a cell, without the space around it."""
    if not line:
        return ""
    # A history may come from elsewhere, so that its names can be of anything.
    if filename not in linecache.cache:
        try:
            status = os.stat(filename)
        except (OSError, ValueError):
            return ""
        is_python = filename.endswith(".py") and stat.S_ISREG(status.st_mode)
        if not is_python or status.st_size > _LARGEST:
            return ""
    return linecache.getline(filename, line).strip()


def ranked(title: str, entries: Sequence[tuple[str, str, str]], most: int) -> list[str]:
    """A list of sizes with their places, each above its details, up to a number of them."""
    lines = [title]
    for size, what, details in entries[:most]:
        lines.append(cut(f"{size:>11} {what}"))
        if details:
            lines.append(cut(f"{'':12}{details}"))
    if len(entries) > most:
        lines.append(f"{'':12}and {len(entries) - most:,} more")
    return lines


def fitted(line: str, width: int) -> list[str]:
    """A line cut to 80 columns; in a narrower terminal it is wrapped, so that nothing is lost."""
    if width == WIDTH or len(line) <= width:
        return [cut(line)]
    return wrapped(line, width)


def wrapped(line: str, width: int = WIDTH) -> list[str]:
    """A line, its rest below it and further right; a number and its unit stay together."""
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    joined = _UNIT.sub("\N{NO-BREAK SPACE}", line)
    lines = textwrap.wrap(joined, width, subsequent_indent=indent, break_on_hyphens=False)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def section_lines(section: Section) -> list[str]:
    """The rows under their headings, and the notes.

    >>> for line in section_lines(Section("held", ("now",), (("weights", (4096,)),))):
    ...     print(repr(line[-20:]))
    '                 now'
    '             4.0 KiB'
    """
    rows = [
        (name, tuple("" if value is None else signed(value) for value in values))
        for name, values in section.rows
    ]
    heads = [("", section.columns)] if rows else []
    return [*(_section_row(name, values) for name, values in [*heads, *rows]), *section.notes]


def _section_row(name: str, values: tuple[str, ...]) -> str:
    room = WIDTH - _SECTION_VALUE * len(values)
    cells = "".join(f"{value:>{_SECTION_VALUE}}" for value in values)
    return filled(cut_place(name, room), room) + cells


# Pieces with styles

Piece: TypeAlias = "tuple[str | Text, str]"
"""A text, and its style: one of rich, empty for plain text, or one of those below."""

Row: TypeAlias = "Sequence[Piece]"

CODE: Final = "code"
"""Cut where the terminal has no room for it and for what follows it."""

NOTE: Final = "note"
HEADING: Final = "heading"
"""Wrapped where the terminal is too narrow; all other rows are cut."""

_WRAPPED: Final = {NOTE: "", HEADING: "bold"}


def document(*parts: Iterable[str]) -> str:
    """Paragraphs of lines as one text, in which no name acts on a terminal."""
    return "\n\n".join("\n".join(map(visible, part)) for part in parts) + "\n"


def plain_text(rows: Iterable[Row]) -> str:
    """Rows as plain text, each with a newline."""
    return "".join(f"{_plain(row)}\n" for row in rows)


def write_rows(rows_for: Callable[[int | None], Iterable[Row]], stream: TextIO) -> None:
    """Write the rows for the width of a terminal, or for None where colours do not suit it."""
    if not is_colourful(stream):
        stream.write(plain_text(rows_for(None)))
        return
    from rich.console import Console

    console = Console(file=stream)
    for row in rows_for(console.width):
        _print(row, console)


def is_colourful(stream: TextIO) -> bool:
    """True for a terminal whose user did not refuse colour."""
    refused = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return stream.isatty() and not refused


def highlighted(lines: list[str]) -> list[Text]:
    """Lines of Python in colour."""
    from rich.syntax import Syntax

    code = "\n".join(visible(line, "\t") for line in lines)
    coloured = Syntax("", "python", theme="ansi_dark").highlight(code)
    return list(coloured.split("\n", allow_blank=True))[: len(lines)]


def _plain(row: Row) -> str:
    text = visible("".join(str(piece) for piece, _ in row), "\t")
    return text.rstrip() if any(style == CODE for _, style in row) else text


def _print(row: Row, console: Console) -> None:
    from rich.text import Text

    if row and row[0][1] in _WRAPPED:
        console.print(Text(visible(str(row[0][0]), "\t"), _WRAPPED[row[0][1]]))
        return
    text = Text()
    for place, (piece, style) in enumerate(row):
        if style != CODE:
            text.append(visible(str(piece), "\t"), style)
            continue
        code = piece.copy() if isinstance(piece, Text) else Text(piece)
        if len(row) > place + 1:
            after = sum(len(piece) for piece, _ in row[place + 1 :])
            code.truncate(max(console.width - len(text) - after, 0), overflow="ellipsis")
        text.append(code)
    text.rstrip()
    console.print(text, no_wrap=True, overflow="ellipsis", crop=True)
