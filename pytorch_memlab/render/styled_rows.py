"""Rows of pieces with styles: as plain text, or in the colours and the width of a terminal."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, TextIO, TypeAlias

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

Piece: TypeAlias = "tuple[str | Text, str]"
"""A text, and its style: one of rich, empty for plain text, or one of those below."""

Row: TypeAlias = "Sequence[Piece]"

CODE: Final = "code"
"""Cut where the terminal has no room for it and for what follows it."""

NOTE: Final = "note"
HEADING: Final = "heading"
"""Wrapped where the terminal is too narrow; all other rows are cut."""

_WRAPPED: Final = {NOTE: "", HEADING: "bold"}


def plain(rows: Iterable[Row]) -> str:
    """Rows as plain text, each with a newline."""
    return "".join(f"{_plain(row)}\n" for row in rows)


def write(rows_for: Callable[[int | None], Iterable[Row]], stream: TextIO) -> None:
    """Write the rows for the width of a terminal, or for None where colours do not suit it."""
    if not is_colourful(stream):
        stream.write(plain(rows_for(None)))
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
    from rich.text import Text

    found = Syntax("", "python", theme="ansi_dark").highlight("\n".join(lines)).split("\n")
    # Rare line ends inside of strings split differently: such code stays uncoloured.
    return list(found) if len(found) == len(lines) else list(map(Text, lines))


def _plain(row: Row) -> str:
    text = "".join(str(piece) for piece, _ in row)
    return text.rstrip() if any(style == CODE for _, style in row) else text


def _print(row: Row, console: Console) -> None:
    from rich.text import Text

    if row and row[0][1] in _WRAPPED:
        console.print(Text(str(row[0][0]), _WRAPPED[row[0][1]]))
        return
    text = Text()
    for place, (piece, style) in enumerate(row):
        if style != CODE:
            text.append(str(piece), style)
            continue
        code = piece.copy() if isinstance(piece, Text) else Text(piece)
        if len(row) > place + 1:
            after = sum(len(each) for each, _ in row[place + 1 :])
            code.truncate(max(console.width - len(text) - after, 0), overflow="ellipsis")
        text.append(code)
    text.rstrip()
    console.print(text, no_wrap=True, overflow="ellipsis", crop=True)
