"""The words for a program of which a trial saw a part: it fits so far."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .._common.text.prose_size import counted
from .._common.text.quoted import printable
from .rows import place

if TYPE_CHECKING:
    from ..fitting.trial import TrialError
    from ..fitting.verdict import PartSeen

_CALLS: Final = 3
"""Calls that are named of those that were not reached."""


def so_far(seen: PartSeen) -> str:
    """The parts of a program that were seen, and missed."""
    calls = seen.unreached
    missed = ", ".join(printable(call) for call in calls[:_CALLS])
    if len(calls) > _CALLS:
        missed += f" and {len(calls) - _CALLS} more"
    parts = [counted(seen.steps, "step")]
    parts += [f"{missed} not reached"] * bool(missed)
    if seen.stopped is not None:
        parts.append(f"then {error_in_short(seen.stopped)}")
    if not seen.is_settled:
        parts.append("memory grows" if seen.grows else "the peak does not repeat")
    return f"so far ({'; '.join(parts)})"


def error_in_short(problem: TrialError) -> str:
    """An error and its line."""
    line = printable(problem.message.splitlines()[0])
    return line if problem.frame is None else f"{line} at {place(*problem.frame, ' in ')}"
