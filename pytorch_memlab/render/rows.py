"""Rows of text in 80 columns: where a line of the program is, and its code."""

from __future__ import annotations

import os
import re
import textwrap
from typing import TYPE_CHECKING, Final

from .._common.quoted import printable

if TYPE_CHECKING:
    from ..records import FunctionInfo

_WIDTH: Final = 80
_UNIT: Final = re.compile(r"(?<=\d) (?=B|KiB|MiB|GiB|%)")


def cut(line: str) -> str:
    """A line of at most 80 columns.

    Args:
        line: of any length.
    """
    return line if len(line) <= _WIDTH else line[: _WIDTH - 1] + "…"


def place_of(function: FunctionInfo, line: int) -> str:
    """A line as people find it.

    Args:
        function: that it is in.
        line: its number.
    """
    return printable(f"{os.path.basename(function.filename)}:{line}  {function.qual_name}")


def code_of(function: FunctionInfo, line: int) -> str:
    """The code of a line, empty where there is no source.

    Args:
        function: that it is in.
        line: its number.
    """
    place = line - function.first_line
    source = function.source or ()
    return printable(source[place].strip()) if 0 <= place < len(source) else ""


def wrapped(text: str, indent: str = "  ") -> list[str]:
    """Lines of at most 80 columns that keep a number and its unit together.

    Args:
        text: a sentence.
        indent: of the first line; two more columns are that of the others.
    """
    joined = _UNIT.sub("\N{NO-BREAK SPACE}", text)
    further = f"{indent}  "
    lines = textwrap.wrap(
        joined, _WIDTH, initial_indent=indent, subsequent_indent=further, break_on_hyphens=False
    )
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]
