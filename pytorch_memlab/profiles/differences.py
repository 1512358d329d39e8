"""What grew and what shrank from one profile to another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ..records import FunctionInfo
from .matching import match_functions, match_lines
from .ranking import calling_lines, kept_by_line, peak_of
from .recorded import MeasuredDevice, RecordedProfile


@dataclass(frozen=True, slots=True)
class Change:
    """A size in both profiles.

    Args:
        before: bytes in the first one.
        after: bytes in the second one.
    """

    before: int
    after: int

    @property
    def growth(self) -> int:
        """Bytes that came to it; negative if it shrank."""
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class DeviceChange:
    """The peaks of a device.

    Args:
        name: of the device.
        active: most bytes in use.
        allocated: most bytes that the program held.
        reserved: most bytes taken from the device.
    """

    name: str
    active: Change
    allocated: Change
    reserved: Change


@dataclass(frozen=True, slots=True)
class LineChange:
    """A line in both profiles, or in one of them.

    Args:
        function: that it is in, as the second profile has it if it does.
        line: its number there.
        device: name of the device.
        former: its function and number in the first profile, if that has it.
        is_new: whether only the second profile has it.
        is_gone: whether only the first profile has it.
        kept: bytes that it kept, without those of recorded functions that it called.
        peak: most active bytes while it ran.
        calls: whether it calls a recorded function in which another line has a peak as high.
    """

    function: FunctionInfo
    line: int
    device: str
    former: tuple[FunctionInfo, int] | None
    is_new: bool
    is_gone: bool
    kept: Change
    peak: Change
    calls: bool


@dataclass(frozen=True, slots=True)
class Differences:
    """What differs between two profiles.

    Args:
        devices: those of either.
        lines: those of either that were measured.
    """

    devices: tuple[DeviceChange, ...]
    lines: tuple[LineChange, ...]

    def kept(self) -> list[LineChange]:
        """Lines that keep more or less, the largest change first."""
        lines = (line for line in self.lines if line.kept.growth)
        return sorted(lines, key=lambda line: -abs(line.kept.growth))

    def peaks(self) -> list[LineChange]:
        """Lines whose peak changed, the largest change first; see ``lines_with_peaks``."""
        lines = (line for line in self.lines if line.peak.growth and not line.calls)
        return sorted(lines, key=lambda line: -abs(line.peak.growth))


def compare(before: RecordedProfile, after: RecordedProfile) -> Differences:
    """Match two profiles and compare their sizes.

    Args:
        before: the first one.
        after: the second one.
    """
    names = _device_names(before, after)
    return Differences(
        tuple(_device_changes(before, after, names)), tuple(_line_changes(before, after, names))
    )


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
    before: RecordedProfile, after: RecordedProfile, names: Mapping[str, str]
) -> Iterator[LineChange]:
    left, right = _Lines(before, names), _Lines(after, {})
    for one, other in match_functions(before.functions, after.functions):
        lines: Mapping[int, int] = {}
        if one is not None and other is not None:
            lines = match_lines(before.functions[one], after.functions[other])
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
    """The lines of one profile by function, number and device.

    Args:
        profile: whose.
        names: its devices, and what they are called.
    """

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
        """Whether the line was measured."""
        return (function, line, device) in self._peaks

    def kept(self, place: tuple[int, int] | None, device: str) -> int:
        """Bytes that a line kept itself."""
        return 0 if place is None else self._kept.get((*place, device), 0)

    def peak(self, place: tuple[int, int] | None, device: str) -> int:
        """The peak of a line."""
        return 0 if place is None else self._peaks.get((*place, device), 0)

    def calls(self, function: int, line: int, device: str) -> bool:
        """Whether the line has its peak from a function that it calls."""
        return (function, line, device) in self._calls
