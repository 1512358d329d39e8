"""Differences between two profiles."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ..history.holders import PeakHolders, Share
from ..records import FunctionInfo
from .matching import match_functions, match_lines
from .ranking import calling_lines, kept_by_line, peak_of
from .recorded import MeasuredDevice, RecordedProfile

Matched = tuple[int | None, int | None, Mapping[int, int]]
"""Indexes of a function in both profiles, and the lines of the first one in the second one."""


@dataclass(frozen=True, slots=True)
class Change:
    """A size in both profiles."""

    before: int  # bytes in the first one
    after: int  # bytes in the second one

    @property
    def growth(self) -> int:
        """Bytes that came to it; negative if it shrank."""
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class DeviceChange:
    """The peaks of a device."""

    name: str
    active: Change  # most bytes in use
    allocated: Change  # most bytes that the program held
    reserved: Change  # most bytes taken from the device


@dataclass(frozen=True, slots=True)
class LineChange:
    """A line in both profiles, or in one of them."""

    function: FunctionInfo
    line: int
    device: str
    former: tuple[FunctionInfo, int] | None
    is_new: bool
    is_gone: bool
    kept: Change  # bytes that it kept, without those of recorded functions that it called
    peak: Change  # most active bytes while it ran
    calls: bool


@dataclass(frozen=True, slots=True)
class HolderChanges:
    """The holders of a peak in both profiles, added up in one way."""

    device: str
    by: str  # ``line``, ``module`` or ``category``
    changes: tuple[tuple[str, Change], ...]  # name and bytes of each part, the largest change first


@dataclass(frozen=True, slots=True)
class Differences:
    """The differences between two profiles."""

    devices: tuple[DeviceChange, ...]
    lines: tuple[LineChange, ...]
    holders: tuple[HolderChanges, ...] = ()

    def kept(self) -> list[LineChange]:
        """Lines that keep more or less, the largest change first."""
        lines = (line for line in self.lines if line.kept.growth)
        return sorted(lines, key=lambda line: -abs(line.kept.growth))

    def peaks(self) -> list[LineChange]:
        """Lines whose peak changed, the largest change first; see ``lines_with_peaks``."""
        lines = (line for line in self.lines if line.peak.growth and not line.calls)
        return sorted(lines, key=lambda line: -abs(line.peak.growth))


def compare(before: RecordedProfile, after: RecordedProfile) -> Differences:
    """Match two profiles and compare their sizes."""
    names = _device_names(before, after)
    matched = [
        (one, other, match_lines(before.functions[one], after.functions[other]))
        if one is not None and other is not None
        else (one, other, {})
        for one, other in match_functions(before.functions, after.functions)
    ]
    return Differences(
        tuple(_device_changes(before, after, names)),
        tuple(_line_changes(before, after, names, matched)),
        tuple(_holder_changes(before, after, names, matched)),
    )


def _holder_changes(
    before: RecordedProfile,
    after: RecordedProfile,
    names: Mapping[str, str],
    matched: Iterable[Matched],
) -> Iterator[HolderChanges]:
    places: dict[tuple[str, int], tuple[str, int]] = {}
    for one, other, lines in matched:
        if one is not None and other is not None:
            file, other_file = before.functions[one].filename, after.functions[other].filename
            for line, number in lines.items():
                places[file, line] = (other_file, number)
    for name, held in before.peaks.items():
        device = names.get(name, name)
        now = after.peaks.get(device)
        if now is not None:
            of_lines = _by_place(held, places), _by_place(now, {})
            of_categories = _by_name(held.by_category()), _by_name(now.by_category())
            of_modules = _by_name(held.by_module()), _by_name(now.by_module())
            yield HolderChanges(device, "category", _changes(*of_categories))
            yield HolderChanges(device, "module", _changes(*of_modules))
            yield HolderChanges(device, "line", _changes(*of_lines))


def _by_place(
    holders: PeakHolders, places: Mapping[tuple[str, int], tuple[str, int]]
) -> dict[str, int]:
    """Bytes by line, each under the name that it has in the second profile."""
    sizes: dict[str, int] = {}
    for holder in holders.by_line():
        file, line = places.get((holder.file, holder.line or 0), (holder.file, holder.line or 0))
        name = f"{os.path.basename(file)}:{line}" if file else holder.function
        sizes[name] = sizes.get(name, 0) + holder.size
    return sizes


def _by_name(shares: Iterable[Share]) -> dict[str, int]:
    return {share.name or "outside of modules, or not known": share.size for share in shares}


def _changes(left: Mapping[str, int], right: Mapping[str, int]) -> tuple[tuple[str, Change], ...]:
    changes = [(name, Change(left.get(name, 0), right.get(name, 0))) for name in {**left, **right}]
    return tuple(sorted(changes, key=lambda item: (-abs(item[1].growth), item[0])))


def _device_names(before: RecordedProfile, after: RecordedProfile) -> dict[str, str]:
    """Names in the first profile and in the second one; single devices match under any name."""
    left, right = _names(before), _names(after)
    if len(left) == len(right) == 1:
        return dict(zip(left, right, strict=True))
    return {name: name for name in left}


def _names(profile: RecordedProfile) -> list[str]:
    return [one.device.name for one in profile.devices]


def _device_changes(
    before: RecordedProfile, after: RecordedProfile, names: Mapping[str, str]
) -> Iterator[DeviceChange]:
    left = {names[one.device.name]: one for one in before.devices}
    right = {one.device.name: one for one in after.devices}
    for name in {**left, **right}:
        one, other = left.get(name), right.get(name)
        yield DeviceChange(
            name,
            Change(_active(one), _active(other)),
            Change(one.peak_allocated if one else 0, other.peak_allocated if other else 0),
            Change(one.peak_reserved if one else 0, other.peak_reserved if other else 0),
        )


def _active(device: MeasuredDevice | None) -> int:
    return device.peak_active if device else 0


def _line_changes(
    before: RecordedProfile,
    after: RecordedProfile,
    names: Mapping[str, str],
    matched: Iterable[Matched],
) -> Iterator[LineChange]:
    left, right = _Lines(before, names), _Lines(after, {})
    for one, other, lines in matched:
        former = {number: line for line, number in lines.items()}
        if other is not None:
            function = after.functions[other]
            for line, device in right.of(other):
                number = former.get(line)
                old = None if one is None or number is None else (one, number)
                yield LineChange(
                    function,
                    line,
                    device,
                    None if old is None else (before.functions[old[0]], old[1]),
                    old is None or not left.has(*old, device),
                    False,
                    Change(left.kept(old, device), right.kept((other, line), device)),
                    Change(left.peak(old, device), right.peak((other, line), device)),
                    right.calls(other, line, device),
                )
        if one is not None:
            for line, device in left.of(one):
                now = None if other is None or line not in lines else (other, lines[line])
                if now is None or not right.has(*now, device):
                    key = (one, line)
                    yield LineChange(
                        before.functions[one],
                        line,
                        device,
                        None,
                        False,
                        True,
                        Change(left.kept(key, device), 0),
                        Change(left.peak(key, device), 0),
                        left.calls(one, line, device),
                    )


class _Lines:
    """The lines of one profile by function, number and device."""

    def __init__(self, profile: RecordedProfile, names: Mapping[str, str]) -> None:
        self._kept = {
            (function, line, names.get(device, device)): size
            for (function, line, device), size in kept_by_line(profile).items()
        }
        self._calls = {
            (function, line, names.get(device, device))
            for function, line, device in calling_lines(profile)
        }
        self._peaks = {
            (entry.code_id, entry.line, names.get(entry.device.name, entry.device.name)): peak_of(
                entry
            )
            for entry in profile.entries
        }
        self._of: dict[int, list[tuple[int, str]]] = {}
        for function, line, device in self._peaks:
            self._of.setdefault(function, []).append((line, device))

    def of(self, function: int) -> Iterable[tuple[int, str]]:
        """Numbers and devices of the lines of a function."""
        return sorted(self._of.get(function, ()))

    def has(self, function: int, line: int, device: str) -> bool:
        """True if the line was measured."""
        return (function, line, device) in self._peaks

    def kept(self, place: tuple[int, int] | None, device: str) -> int:
        """Bytes that a line kept itself."""
        return 0 if place is None else self._kept.get((*place, device), 0)

    def peak(self, place: tuple[int, int] | None, device: str) -> int:
        """The peak of a line."""
        return 0 if place is None else self._peaks.get((*place, device), 0)

    def calls(self, function: int, line: int, device: str) -> bool:
        """True if the peak of the line is one of a function that it calls."""
        return (function, line, device) in self._calls
