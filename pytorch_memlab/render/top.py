"""The lines that add most and those with the highest peaks, as text."""

from __future__ import annotations

from collections.abc import Sequence

from .._common.text.prose_size import counted, prose_size
from ..profiles.ranking import RankedLine
from ..profiles.recorded import RecordedProfile
from .rows import code_of, document, place_of, ranked
from .run_notes import run_notes


def text(
    profile: RecordedProfile,
    adding: Sequence[RankedLine],
    peaking: Sequence[RankedLine],
    rows: int,
) -> str:
    """Both lists, and the run that they are of."""
    several = len(profile.devices) > 1

    def entry(one: RankedLine, size: int) -> tuple[str, str, str]:
        device = f"  on {one.device}" if several else ""
        kept = f", kept {prose_size(one.kept)}" if one.kept else ""
        where = f"{place_of(one.function, one.line)}  {counted(one.hits, 'hit')}{kept}{device}"
        return prose_size(size), where, code_of(one.function, one.line)

    adds = [entry(one, one.own) for one in adding]
    peaks = [entry(one, one.peak) for one in peaking]
    add = "lines that add most themselves in a hit, without the functions that they call:"
    parts = [
        ranked(add, adds, rows) if adds else ["no line adds memory"],
        ranked("lines with the highest peaks:", peaks, rows)
        if peaks
        else ["no line has a peak: no memory was in use"],
        run_notes(profile),
    ]
    return document(*parts)
