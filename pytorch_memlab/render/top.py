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

    def entry(line: RankedLine, size: int) -> tuple[str, str, str]:
        device = f"  on {line.device}" if several else ""
        kept = f", kept {prose_size(line.kept)}" if line.kept else ""
        where = f"{place_of(line.function, line.line)}  {counted(line.hits, 'hit')}{kept}{device}"
        return prose_size(size), where, code_of(line.function, line.line)

    adds = [entry(line, line.own) for line in adding]
    peaks = [entry(line, line.peak) for line in peaking]
    add = "lines that add most themselves in a hit, without the functions that they call:"
    parts = [
        ranked(add, adds, rows) if adds else ["no line adds memory"],
        ranked("lines with the highest peaks:", peaks, rows)
        if peaks
        else ["no line has a peak: no memory was in use"],
        run_notes(profile),
    ]
    return document(*parts)
