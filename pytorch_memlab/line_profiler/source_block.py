"""The lines of one definition within a file of any length."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import overload


def source_block(lines: Sequence[str], first: int) -> Sequence[str]:
    """The lines of the definition that begins at a place in a file; no other line is copied."""
    return inspect.getblock(_Rest(lines, first))


class _Rest(Sequence[str]):
    """The lines from one of them on; a slice of a list would copy them for each function."""

    def __init__(self, lines: Sequence[str], first: int) -> None:
        self._lines = lines
        self._places = range(first, len(lines))

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self._lines[place] for place in self._places[index]]
        return self._lines[self._places[index]]
