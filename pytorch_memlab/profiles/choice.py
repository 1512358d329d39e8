"""The part of a profile that a report shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

COLUMNS: Final = ("peak", "kept", "temporary")
"""Columns of a report unless others are asked for."""

SORTS: Final = ("peak", "kept", "temporary", "name", "line")
"""Orders of functions; without one, those that add most come first."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The functions and lines of a profile that a report shows, and their order."""

    # how many functions, and how many lines of each; None for the usual number
    top: int | None = None
    # one of ``SORTS``; None for what adds most, or with ``everything`` the order in which the
    # program defines the functions
    sort: str | None = None
    everything: bool = False
