"""Values that a program asked for where there are none: what, how often, and at which line."""

from __future__ import annotations

import os
import sys
from collections import Counter
from dataclasses import dataclass

import torch

_SKIPPED = tuple(
    os.path.join(os.path.dirname(os.path.realpath(path)), "")
    for path in (torch.__file__, os.path.dirname(__file__))
)
"""Folders of torch and of this package: a line there is not the program's."""


@dataclass(frozen=True, slots=True)
class ValueRead:
    """One place where a program read values that its tensors do not have.

    Args:
        op: what it called, such as ``aten::nonzero``.
        filename: of the program's source.
        line: in that file.
        count: how often.
    """

    op: str
    filename: str
    line: int
    count: int

    def __str__(self) -> str:
        """As a compiler says where something is."""
        times = "once" if self.count == 1 else f"{self.count} times"
        return f"{self.filename}:{self.line}: {self.op} read values that are not there, {times}"


class ValueReads:
    """Counts them."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str, int]] = Counter()

    def count(self, op: str) -> None:
        """Count one, at the innermost line of the program.

        Args:
            op: its name.
        """
        self._counts[(op, *_line_of_program())] += 1

    def all(self) -> tuple[ValueRead, ...]:
        """All that were counted, in the order in which they first happened."""
        return tuple(ValueRead(*where, count) for where, count in self._counts.items())


def _line_of_program() -> tuple[str, int]:
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_skipped(frame.f_code.co_filename):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _is_skipped(filename: str) -> bool:
    return filename.startswith(_SKIPPED) or filename.startswith("<frozen")
