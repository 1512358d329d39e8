"""The lines of a profile that keep most, and those with the highest peaks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..records import FunctionInfo, LineEntry
from .recorded import RecordedProfile

PEAK = "active_bytes.all.peak"

Place = tuple[int, int, str]
"""Index of a function, number of a line, and name of a device."""


@dataclass(frozen=True, slots=True)
class RankedLine:
    """A line on the device on which it ranks highest."""

    function: FunctionInfo
    line: int
    device: str
    hits: int
    # bytes that it kept over all hits, without those that recorded functions kept which it called
    kept: int
    peak: int  # most active bytes while it ran
    calls: bool  # it calls a recorded function in which another line has a peak as high


def lines_that_keep(profile: RecordedProfile) -> list[RankedLine]:
    """Lines that kept anything themselves, the largest first, each on one device."""
    return _ranked((one for one in lines_of(profile) if one.kept > 0), lambda line: line.kept)


def lines_with_peaks(profile: RecordedProfile) -> list[RankedLine]:
    """Lines by their peaks, the highest first, each on one device, without those that call."""
    lines = (one for one in lines_of(profile) if one.peak > 0 and not one.calls)
    return _ranked(lines, lambda line: line.peak)


def lines_of(profile: RecordedProfile) -> list[RankedLine]:
    """The lines in the order of the entries."""
    kept, callers = kept_by_line(profile), calling_lines(profile)
    return [
        RankedLine(
            profile.functions[place[0]],
            place[1],
            place[2],
            entry.hits,
            kept[place],
            peak_of(entry),
            place in callers,
        )
        for entry, place in zip(profile.entries, map(_place, profile.entries), strict=True)
    ]


def kept_by_line(profile: RecordedProfile) -> dict[Place, int]:
    """Bytes that each line kept, without those that recorded functions kept which it called."""
    kept = {_place(entry): entry.delta for entry in profile.entries}
    for call in profile.calls:
        for device, delta in call.delta.items():
            place = (-1 if call.caller is None else call.caller, call.line, device)
            if place in kept:
                kept[place] -= delta
    return kept


def calling_lines(profile: RecordedProfile) -> set[Place]:
    """Lines that call a recorded function in which another line has a peak as high."""
    peaks: defaultdict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
    for entry in profile.entries:
        peaks[entry.code_id, entry.device.name].append((peak_of(entry), entry.line))
    highest = {key: sorted(lines, reverse=True)[:2] for key, lines in peaks.items()}
    callees: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
    for call in profile.calls:
        if call.caller is not None:
            callees[call.caller, call.line].add(call.callee)
    return {
        _place(entry)
        for entry in profile.entries
        for callee in callees.get((entry.code_id, entry.line), ())
        for peak, line in highest.get((callee, entry.device.name), ())
        if peak >= peak_of(entry) and (callee, line) != (entry.code_id, entry.line)
    }


def peak_of(entry: LineEntry) -> int:
    return entry.stats.get(PEAK, 0)


def _place(entry: LineEntry) -> Place:
    return entry.code_id, entry.line, entry.device.name


def _ranked(lines: Iterable[RankedLine], size: Callable[[RankedLine], int]) -> list[RankedLine]:
    """Each line once, on the device where its size is largest."""
    best: dict[tuple[FunctionInfo, int], RankedLine] = {}
    for line in lines:
        key = (line.function, line.line)
        if key not in best or size(line) > size(best[key]):
            best[key] = line
    return sorted(best.values(), key=lambda line: (-size(line), line.function.filename, line.line))
