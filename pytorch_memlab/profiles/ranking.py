"""The lines of a profile that add most, and those with the highest peaks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ..records import FunctionInfo, LineEntry, mean
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
    kept: int  # bytes that a hit allocated and did not free, its mean, calls included
    # bytes that a hit added, its mean, without those of the recorded functions that it called
    own: int
    peak: int  # most active bytes while it ran
    calls: bool  # it calls a recorded function in which another line has a peak as high


def lines_that_add(profile: RecordedProfile) -> list[RankedLine]:
    """Lines that added anything themselves, the largest first, each on one device."""
    return _ranked((line for line in lines_of(profile) if line.own > 0), lambda line: line.own)


def lines_with_peaks(profile: RecordedProfile) -> list[RankedLine]:
    """Lines by their peaks, the highest first, each on one device, without those that call."""
    lines = (line for line in lines_of(profile) if line.peak > 0 and not line.calls)
    return _ranked(lines, lambda line: line.peak)


def lines_of(profile: RecordedProfile) -> list[RankedLine]:
    """The lines in the order of the entries."""
    own, callers = own_by_line(profile), calling_lines(profile)
    return [
        RankedLine(
            profile.functions[place[0]],
            place[1],
            place[2],
            entry.hits,
            entry.kept,
            own[place],
            peak_of(entry),
            place in callers,
        )
        for entry, place in zip(profile.entries, map(_place, profile.entries), strict=True)
    ]


def own_by_line(profile: RecordedProfile) -> dict[Place, int]:
    """Bytes that a hit of each line added, without those of recorded functions that it called."""
    of_calls = Counter[Place]()
    for call in profile.calls:
        for device, added in call.added.items():
            of_calls[-1 if call.caller is None else call.caller, call.line, device] += added
    return {
        _place(entry): entry.delta - mean(of_calls[_place(entry)], entry.hits)
        for entry in profile.entries
    }


def added_by_call(
    function: FunctionInfo,
    # how often each line was hit, and the bytes that a hit added itself
    lines: Mapping[int, tuple[int, int]],
) -> int:
    """Bytes that a call of a function added itself, its mean."""
    # The first line is hit once for each call, unless the function is a module.
    calls = 1
    if lines and function.qual_name != "<module>":
        calls = lines[min(lines)][0]
    return mean(sum(hits * size for hits, size in lines.values()), calls)


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
