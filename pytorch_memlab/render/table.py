"""A table of texts: the terminal tables of commands are made of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Table:
    """Rows below the heads of their columns."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]  # the rest of a short row is empty
    layout: str  # a row for ``str.format``: what is longer than its column pushes the rest

    def lines(self) -> Iterator[str]:
        """The heads, then the rows, without space at their ends.

        >>> list(Table(("gpu", "peak"), [("t4", "15.0 GiB")], "{:6}{:>10}").lines())
        ['gpu         peak', 't4      15.0 GiB']
        """
        for row in (self.heads, *self.rows):
            missing = [""] * (len(self.heads) - len(row))
            yield self.layout.format(*row, *missing).rstrip()


def fitted(
    heads: Sequence[str], rows: Sequence[Sequence[str]], names: Collection[int], between: str
) -> Table:
    """Columns as wide as they need: names, at some places, begin at the left, numbers end right."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    cells = [f"{{:{'<' if place in names else '>'}{width}}}" for place, width in enumerate(widths)]
    return Table(heads, rows, between.join(cells))
