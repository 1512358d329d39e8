"""Rows of text in 80 columns: lines of the program with their code, sections, sentences."""

from __future__ import annotations

import linecache
import os
import re
import stat
import textwrap
from typing import TYPE_CHECKING, Any, Final

from .._common.prose_size import prose_size
from .._common.quoted import printable
from ..records import Section
from ..utils import readable_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..history.holders import Share
    from ..records import FunctionInfo

WIDTH: Final = 80
_SECTION_VALUE: Final = 13
_LARGEST: Final = 10 * 2**20
"""Bytes of a file of which lines are read."""

_UNIT: Final = re.compile(r"(?<=\d) (?=B|KiB|MiB|GiB|%|calls?)")


def cut(line: str) -> str:
    """A line of at most 80 columns."""
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"


def padded(name: str, width: int) -> str:
    """A name of the program in a column of some width, cut where it is longer."""
    shown = printable(name)
    return f"{shown if len(shown) < width else shown[: width - 2] + '…':{width}}"


def place_of(function: FunctionInfo, line: int) -> str:
    """A line of a function as people find it."""
    return place(function.filename, line, function.qual_name)


def place(file: str, line: int | None, name: str, between: str = "  ") -> str:
    """A line as people find it, such as ``train.py:12  step``; the name where there is no file."""
    number = "" if line is None else f":{line}"
    return printable(f"{os.path.basename(file)}{number}{between}{name}" if file else name)


def shares_text(shares: Sequence[Share], most: int) -> str:
    """The sizes and the names of the first shares, and the size of the others."""
    rest = sum(one.size for one in shares[most:])
    named = [f"{prose_size(one.size)} {printable(one.name)}" for one in shares[:most]]
    return ", ".join([*named, *([f"{prose_size(rest)} more"] if rest else [])])


def with_minus(size: int) -> str:
    """A size, with its sign where it is negative."""
    return f"-{prose_size(-size)}" if size < 0 else prose_size(size)


def code_of(function: FunctionInfo, line: int) -> str:
    """The code of a line, empty where there is no source."""
    index = line - function.first_line
    source = function.source or ()
    return printable(source[index].strip()) if 0 <= index < len(source) else ""


def source_line(filename: str, line: int | None) -> str:
    """One line of a Python file of usual size or of a cell, without the space around it."""
    if not line:
        return ""
    # A history may come from elsewhere, so that its names can be of anything.
    if filename not in linecache.cache:
        try:
            found = os.stat(filename)
        except (OSError, ValueError):
            return ""
        is_python = filename.endswith(".py") and stat.S_ISREG(found.st_mode)
        if not is_python or found.st_size > _LARGEST:
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
    text = line.lstrip()
    return wrapped(text, line[: len(line) - len(text)], width)


def wrapped(text: str, indent: str = "  ", width: int = WIDTH) -> list[str]:
    """Lines that keep a number and its unit together."""
    return _wrapped(text, width, initial_indent=indent, subsequent_indent=f"{indent}  ")


def paragraph(line: str) -> list[str]:
    """A line with its own indentation, wrapped where it is longer than 80 columns."""
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return _wrapped(line, WIDTH, subsequent_indent=indent, break_long_words=False)


def section_lines(section: Section) -> list[str]:
    """The rows under their headings, and the notes.

    >>> for line in section_lines(Section("held", ("now",), (("weights", (4096,)),))):
    ...     print(repr(line[-20:]))
    '## held'
    ''
    '                 now'
    '               4.00K'
    """
    lines = [f"## {section.title}", ""]
    if section.rows:
        rows = [(name, tuple(map(readable_size, values))) for name, values in section.rows]
        lines += [_section_row(name, values) for name, values in [("", section.columns), *rows]]
    return [*lines, *section.notes]


def _wrapped(text: str, width: int, **options: Any) -> list[str]:
    joined = _UNIT.sub("\N{NO-BREAK SPACE}", text)
    lines = textwrap.wrap(joined, width, break_on_hyphens=False, **options)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def _section_row(name: str, values: tuple[str, ...]) -> str:
    room = WIDTH - _SECTION_VALUE * len(values)
    shown = name if len(name) <= room else name[: room - 1] + "…"
    return f"{shown:<{room}}" + "".join(f"{value:>{_SECTION_VALUE}}" for value in values)
