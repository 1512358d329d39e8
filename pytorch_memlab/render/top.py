"""The lines that keep most and those with the highest peaks, as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .._common.prose_size import prose_size
from .rows import code_of, cut, place_of
from .run_notes import run_notes

if TYPE_CHECKING:
    from ..profiles.ranking import RankedLine
    from ..profiles.recorded import RecordedProfile

_INDENT = " " * 12


def text(
    profile: RecordedProfile,
    keeping: Sequence[RankedLine],
    peaking: Sequence[RankedLine],
    rows: int,
) -> str:
    """Both lists, and the run that they are of."""
    several = len(profile.devices) > 1
    parts = [
        _list("lines that keep most, without the functions that they call:", keeping, rows, several)
        if keeping
        else ["no line keeps memory"],
        _list("lines with the highest peaks:", peaking, rows, several)
        if peaking
        else ["no line has a peak: no memory was in use"],
        run_notes(profile),
    ]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _list(title: str, lines: Sequence[RankedLine], rows: int, several: bool) -> list[str]:
    is_peak = title.startswith("lines with")
    found = [title]
    for one in lines[:rows]:
        size = prose_size(one.peak if is_peak else one.kept)
        hits = f"{one.hits:,} hit{'s' * (one.hits != 1)}"
        device = f"  on {one.device}" if several else ""
        found.append(cut(f"{size:>11} {place_of(one.function, one.line)}  {hits}{device}"))
        code = code_of(one.function, one.line)
        if code:
            found.append(cut(_INDENT + code))
    if len(lines) > rows:
        found.append(f"{_INDENT}and {len(lines) - rows:,} more")
    return found
