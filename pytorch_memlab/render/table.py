"""A table of texts, whose columns are as wide as they need."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Table:
    """Rows below their heads: names begin at the left of a column, numbers end at its right."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    names: Collection[int]  # the columns of names, by their places
    between: str = " "  # two columns

    def lines(self) -> Iterator[str]:
        """The heads, then the rows, without space at their ends.

        >>> list(Table(("gpu", "peak"), [("t4", "15.0 GiB")], {0}).lines())
        ['gpu     peak', 't4  15.0 GiB']
        """
        widths = [max(map(len, column)) for column in zip(self.heads, *self.rows, strict=True)]
        sides = ["<" if place in self.names else ">" for place in range(len(widths))]
        for row in (self.heads, *self.rows):
            cells = zip(row, sides, widths, strict=True)
            yield self.between.join(f"{cell:{side}{width}}" for cell, side, width in cells).rstrip()
