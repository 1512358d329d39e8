"""What of a profile a report shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

COLUMNS: Final = ("peak", "kept", "temporary")
"""What the report shows of a line unless other columns are asked for."""

SORTS: Final = ("peak", "kept", "temporary", "name", "line")
"""Orders of functions; without one, those that add most come first."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What of a profile is shown, and in which order."""

    # how many functions, and how many lines of each; None for the usual number
    top: int | None = None
    # one of ``SORTS``; None for what adds most, or with ``everything`` the order in which the
    # program defines the functions
    sort: str | None = None
    everything: bool = False
