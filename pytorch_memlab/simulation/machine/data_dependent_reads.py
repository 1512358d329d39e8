"""Values that a program asked for where there are none: what, how often, and at which line."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass

from ..._common.program_lines import current_line
from ...errors import AssumedValueError


@dataclass(frozen=True, slots=True)
class DataDependentRead:
    """One place where a program read values that its tensors do not have.

    Args:
        op: the op that it called, such as ``aten::nonzero``.
        name: what the program calls it.
        assumption: what a dry run assumes the values to be.
        filename: of the source of the program.
        line: in that file.
        count: how often.
    """

    op: str
    name: str
    assumption: str
    filename: str
    line: int
    count: int

    def __str__(self) -> str:
        """As a compiler says where something is."""
        times = "once" if self.count == 1 else f"{self.count} times"
        return f"{self.filename}:{self.line}: {self.op} read values that are not there, {times}"


class DataDependentReads:
    """Counts them.

    Attributes:
        events: how often anything was counted.
        strict: whether one is an error.
    """

    def __init__(self) -> None:
        self.events = 0
        self.strict = False
        self._counts: Counter[tuple[str, str, str, str, int]] = Counter()
        self._lock = threading.Lock()

    def count(self, op: str, name: str, assumption: str) -> None:
        """Count one, at the innermost line of the program."""
        place = current_line()
        if self.strict:
            filename, line = place
            raise AssumedValueError(
                f"{filename}:{line}: {name} reads values that a dry run does not have "
                f"(assumed {assumption} otherwise): do not read them, or run without compute=False "
                "(--dry-run); without strict=True (--strict) the line is marked ?"
            )
        with self._lock:
            self._counts[(op, name, assumption, *place)] += 1
            self.events += 1

    def all(self) -> tuple[DataDependentRead, ...]:
        """All that were counted, in the order in which they first happened."""
        return tuple(
            DataDependentRead(*where, count) for where, count in self._counts.copy().items()
        )
