"""Differences between two profiles."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from .._common.process.ipython import file_name
from ..history.holders import NO_MODULE, PeakHolders, Share
from ..records import FunctionInfo
from ..simulation.inspect import checked_size
from .matching import Matched, match
from .ranking import RankedLine, lines_of
from .recorded import MeasuredDevice, RecordedProfile

_PERCENT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*%")


@dataclass(frozen=True, slots=True)
class SizeChange:
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
    active: SizeChange  # most bytes in use
    allocated: SizeChange  # most bytes that the program held
    reserved: SizeChange  # most bytes taken from the device


@dataclass(frozen=True, slots=True)
class LineChange:
    """A line in both profiles, or in one of them."""

    function: FunctionInfo
    line: int
    device: str
    former: tuple[FunctionInfo, int] | None
    is_new: bool
    is_gone: bool
    kept: SizeChange  # bytes that a hit allocated and did not free, its mean, calls included
    own: SizeChange  # the same without those of the functions that it called
    peak: SizeChange  # most active bytes while it ran
    calls: bool


@dataclass(frozen=True, slots=True)
class HolderChanges:
    """The holders of a peak in both profiles, added up in one way."""

    device: str
    by: str  # ``line``, ``module`` or ``category``
    changes: tuple[
        tuple[str, SizeChange], ...
    ]  # name and bytes of each part, the largest change first


@dataclass(frozen=True, slots=True)
class Differences:
    """The differences between two profiles."""

    devices: tuple[DeviceChange, ...]
    lines: tuple[LineChange, ...]
    holders: tuple[HolderChanges, ...] = ()

    def own(self) -> list[LineChange]:
        lines = (line for line in self.lines if line.own.growth)
        return sorted(lines, key=lambda line: -abs(line.own.growth))

    def peaks(self) -> list[LineChange]:
        lines = (line for line in self.lines if line.peak.growth and not line.calls)
        return sorted(lines, key=lambda line: -abs(line.peak.growth))


def growth_limit(option: str, text: str | None) -> Callable[[SizeChange], bool]:
    """A function that is true for a size that grew too much."""
    if text is None:
        return lambda _: False
    share = _PERCENT.fullmatch(text.strip())
    if share:
        most = float(share[1]) / 100
        return lambda change: change.growth > most * change.before
    expected = f"{option} is a share such as 5% or a size such as 64MiB"
    size = checked_size(text, expected, units=("%", "MiB", "GiB"))
    return lambda change: change.growth > size


def compare(before: RecordedProfile, after: RecordedProfile) -> Differences:
    names = device_names(before, after)
    matched = match(before.functions, after.functions)
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
    for place, other, lines in matched:
        if place is not None and other is not None:
            file, other_file = before.functions[place].filename, after.functions[other].filename
            for line, number in lines.items():
                places[file, line] = (other_file, number)
    for name, held in before.peaks.items():
        device = names.get(name, name)
        now = after.peaks.get(device)
        if now is not None:
            ways = {
                "category": (_by_name(held.by_category()), _by_name(now.by_category())),
                "module": (_by_name(held.by_module()), _by_name(now.by_module())),
                "line": (_by_place(held, places), _by_place(now, {})),
            }
            for by, sizes in ways.items():
                yield HolderChanges(device, by, _changes(*sizes))


def _by_place(
    holders: PeakHolders, places: Mapping[tuple[str, int], tuple[str, int]]
) -> dict[str, int]:
    """Bytes by line, each under the name that it has in the second profile."""
    sizes = Counter[str]()
    for holder in holders.by_line():
        place = holder.file, holder.line or 0
        file, line = places.get(place, place)
        sizes[f"{file_name(file)}:{line}" if file else holder.function] += holder.size
    return sizes


def _by_name(shares: Iterable[Share]) -> dict[str, int]:
    return {share.name or NO_MODULE: share.size for share in shares}


def _changes(
    left: Mapping[str, int], right: Mapping[str, int]
) -> tuple[tuple[str, SizeChange], ...]:
    changes = [
        (name, SizeChange(left.get(name, 0), right.get(name, 0))) for name in {**left, **right}
    ]
    return tuple(sorted(changes, key=lambda item: (-abs(item[1].growth), item[0])))


def device_names(before: RecordedProfile, after: RecordedProfile) -> dict[str, str]:
    """Names in the first profile and in the second one; single devices match under any name."""
    left, right = (
        [device.device.name for device in profile.devices] for profile in (before, after)
    )
    return dict(zip(left, right if len(left) == len(right) == 1 else left, strict=True))


def _device_changes(
    before: RecordedProfile, after: RecordedProfile, names: Mapping[str, str]
) -> Iterator[DeviceChange]:
    left = {names[device.device.name]: _peaks(device) for device in before.devices}
    right = {device.device.name: _peaks(device) for device in after.devices}
    for name in left | right:
        yield DeviceChange(
            name, *map(SizeChange, left.get(name, (0,) * 3), right.get(name, (0,) * 3))
        )


def _peaks(measured: MeasuredDevice) -> tuple[int, ...]:
    return measured.peak_active, measured.peak_allocated, measured.peak_reserved


def _line_changes(
    before: RecordedProfile,
    after: RecordedProfile,
    names: Mapping[str, str],
    matched: Iterable[Matched],
) -> Iterator[LineChange]:
    left, right = _lines(before, names), _lines(after, {})
    for place, other, lines in matched:
        numbers = {number: line for line, number in lines.items()}
        old, new = left.get(place, {}), right.get(other, {})
        for (line, device), now in sorted(new.items()):
            number, former = numbers.get(line), None
            if place is not None and number is not None:
                former = before.functions[place], number
            was = None if number is None else old.get((number, device))
            sizes = _changed_sizes(was, now)
            flags = was is None, False
            yield LineChange(now.function, line, device, former, *flags, *sizes, now.calls)
        for (line, device), gone in sorted(old.items()):
            if line not in lines or (lines[line], device) not in new:
                sizes = _changed_sizes(gone, None)
                yield LineChange(gone.function, line, device, None, False, True, *sizes, gone.calls)


def _changed_sizes(
    before: RankedLine | None, after: RankedLine | None
) -> tuple[SizeChange, SizeChange, SizeChange]:
    (kept, own, peak), now = (
        (line.kept, line.own, line.peak) if line else (0, 0, 0) for line in (before, after)
    )
    return SizeChange(kept, now[0]), SizeChange(own, now[1]), SizeChange(peak, now[2])


def _lines(
    profile: RecordedProfile, names: Mapping[str, str]
) -> dict[int | None, dict[tuple[int, str], RankedLine]]:
    ranked_lines: dict[int | None, dict[tuple[int, str], RankedLine]] = {}
    for entry, line in zip(profile.entries, lines_of(profile), strict=True):
        device = names.get(line.device, line.device)
        ranked_lines.setdefault(entry.code_id, {})[line.line, device] = line
    return ranked_lines
