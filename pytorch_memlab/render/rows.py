"""Rows of text in 80 columns: where a line of the program is, and its code."""

from __future__ import annotations

import os
import re
import textwrap
from typing import TYPE_CHECKING, Any, Final

from .._common.quoted import printable

if TYPE_CHECKING:
    from ..records import FunctionInfo

WIDTH: Final = 80
_UNIT: Final = re.compile(r"(?<=\d) (?=B|KiB|MiB|GiB|%|calls?)")


def cut(line: str) -> str:
    """A line of at most 80 columns."""
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"


def padded(name: str, width: int) -> str:
    """A name of the program in a column of some width, cut where it is longer."""
    shown = printable(name)
    return f"{shown if len(shown) < width else shown[: width - 2] + '…':{width}}"


def place_of(function: FunctionInfo, line: int) -> str:
    """A line as people find it."""
    return printable(f"{os.path.basename(function.filename)}:{line}  {function.qual_name}")


def code_of(function: FunctionInfo, line: int) -> str:
    """The code of a line, empty where there is no source."""
    place = line - function.first_line
    source = function.source or ()
    return printable(source[place].strip()) if 0 <= place < len(source) else ""


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


def _wrapped(text: str, width: int, **options: Any) -> list[str]:
    joined = _UNIT.sub("\N{NO-BREAK SPACE}", text)
    lines = textwrap.wrap(joined, width, break_on_hyphens=False, **options)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]
