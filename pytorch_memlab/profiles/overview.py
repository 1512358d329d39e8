"""The head of a report of a run: its peaks, what held them, and the functions that add most."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from ..records import (
    ApproximationKind,
    FunctionInfo,
    FunctionTable,
    Report,
    bound_of,
    mean,
)
from .device_verdicts import OUT_OF_MEMORY, DeviceVerdict, uncounted_devices, verdicts
from .ranking import added_by_call, lines_of
from .recorded import GrowingLoop, MeasuredDevice, RecordedProfile

if TYPE_CHECKING:
    from ..history.holders import Holder, PeakHolders, Share

_AT_LEAST: Final = ApproximationKind.AT_LEAST.value

COLUMNS: Final = ("peak", "kept", "temporary")
"""Columns of a report unless others are asked for."""

_LINES: Final = 10
_FUNCTIONS: Final = 10
_UNPROFILED: Final = 2
_HELD_LINES: Final = 3
_WORTH: Final = 20
"""A line is worth naming if it holds this part of the peak."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The functions and lines of a profile that a report shows, and their order."""

    # how many functions, and how many lines of each; None for the usual number
    top: int | None = None
    # one of ``SORTS``; None for what adds most, or with ``everything`` the order in which the
    # program defines the functions
    sort: str | None = None
    everything: bool = False


@dataclass(frozen=True, slots=True)
class FunctionLine:
    """A line of a function."""

    function: FunctionInfo
    line: int


@dataclass(frozen=True, slots=True)
class HeldLine:
    """A line that holds much of a peak."""

    holder: Holder
    # lines of libraries that it calls, the largest first, if libraries made most of it
    below: tuple[Holder, ...]


@dataclass(frozen=True, slots=True)
class Headline:
    """The peak of a device."""

    measured: MeasuredDevice
    # the profiled line with the highest peak; None where no line had memory in use
    place: FunctionLine | None
    # active bytes of that peak: less than those of the device if its peak was outside of the
    # profiled lines
    place_peak: int
    # the bytes of the device's peak by category, the largest first; none if that was not recorded
    categories: tuple[Share, ...]
    verdict: DeviceVerdict | None  # whether the memory was enough; None if that is not known
    # whether the peak is ``at most`` or ``at least`` the true one, or ``more or less``; or empty
    bound: str
    lines: tuple[HeldLine, ...]  # those that hold most of the peak, the largest first
    growing: GrowingLoop | None  # a loop whose iterations leave memory
    growing_place: FunctionLine | None  # of the loop
    # the lines that hold most at the peak, if they are in files of which no function was profiled
    unprofiled: tuple[Holder, ...]

    @property
    def is_in_line(self) -> bool:
        return self.place is not None and self.place_peak == self.measured.peak_active


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that ended the program because a GPU had not enough memory."""

    # the innermost profiled line that it went through; None if it went through none
    place: FunctionLine | None
    asked: int | None  # bytes that the program asked for; None if that is not known


@dataclass(frozen=True, slots=True)
class ShownFunction:
    """A function on a device, with the lines that are shown."""

    table: FunctionTable
    # numbers of the lines to show, in order; None for all of the source
    lines: tuple[int, ...] | None
    # the line at which the device had its highest peak; None if it is elsewhere
    peak_line: int | None


@dataclass(frozen=True, slots=True)
class Overview:
    """The content of a report of a run."""

    report: Report
    # one for each device that had memory in use; for the first one if none had
    headlines: tuple[Headline, ...]
    failure: Failure | None
    functions: tuple[ShownFunction, ...]
    more_functions: int
    more_lines: int
    idle_functions: int
    idle_lines: int


def overview(profile: RecordedProfile, report: Report, choice: Choice) -> Overview:
    sizes = _Sizes(profile)
    headlines = tuple(_headlines(profile, sizes))
    peaks = {
        (headline.place, headline.measured.device.name)
        for headline in headlines
        if headline.is_in_line
    }
    functions = [_Function(table, sizes, peaks) for table in report.tables]
    listed = _listed(functions, choice)
    top = len(listed)
    if not choice.everything:
        top = _FUNCTIONS if choice.top is None else choice.top
    lines = _LINES if choice.top is None else choice.top
    shown_parts = [
        function.shown(None if choice.everything else lines, choice.sort)
        for function in listed[:top]
    ]
    names = {function.table.function for function in listed[:top]}
    hidden = {function.table.function for function in listed[top:]} - names
    idle = {function.table.function for function in functions} - names - hidden
    more_lines, idle_lines = _hidden_lines(listed, shown_parts)
    return Overview(
        report,
        headlines,
        _failure(profile),
        tuple(shown_parts),
        len(hidden),
        more_lines,
        len(idle),
        idle_lines,
    )


def _listed(functions: Sequence[_Function], choice: Choice) -> list[_Function]:
    """The functions in the order of a report; unless all are asked for, those with lines."""
    listed = [*functions]
    if choice.sort is not None or not choice.everything:
        listed = sorted(functions, key=_ORDERS[choice.sort or ""])
    return [function for function in listed if function.lines or choice.everything]


def _hidden_lines(
    listed: Sequence[_Function], shown_parts: Sequence[ShownFunction]
) -> tuple[int, int]:
    """The numbers of lines of functions that are left out: of those listed, and of the others."""
    listed_lines: defaultdict[FunctionInfo, set[int]] = defaultdict(set)
    ran: defaultdict[FunctionInfo, set[int]] = defaultdict(set)
    seen: defaultdict[FunctionInfo, set[int]] = defaultdict(set)
    for function_sizes, part in zip(listed, shown_parts, strict=False):
        function = function_sizes.table.function
        listed_lines[function].update(function_sizes.lines)
        ran[function].update(function_sizes.table.rows)
        seen[function].update(function_sizes.table.rows if part.lines is None else part.lines)
    return (
        sum(len(lines - seen[function]) for function, lines in listed_lines.items()),
        sum(
            len(lines - listed_lines[function] - seen[function]) for function, lines in ran.items()
        ),
    )


def headlines_of(profile: RecordedProfile) -> tuple[tuple[Headline, ...], Failure | None]:
    """The peak of each device, and where memory ran out, without the functions."""
    return tuple(_headlines(profile, _Sizes(profile))), _failure(profile)


@dataclass(slots=True)
class _LineSizes:
    """Bytes of a line on a device."""

    peak: int = 0
    kept: int = 0
    temporary: int = 0
    freed: int = 0
    hits: int = 0
    own: int = 0
    own_temporary: int = 0
    is_caller: bool = False  # it calls the line that has its peak

    def add_hits(self, hits: int, kept: int, freed: int, own: int) -> None:
        """Add hits, by their mean sizes."""
        before, self.hits = self.hits, self.hits + hits
        self.kept = mean(before * self.kept + hits * kept, self.hits)
        self.freed = mean(before * self.freed + hits * freed, self.hits)
        self.own = mean(before * self.own + hits * own, self.hits)


class _Sizes:
    """The sizes of all lines; those of functions that are equal, as of a reload, together."""

    def __init__(self, profile: RecordedProfile) -> None:
        # Lines are looked up by the place of the first of the equal functions: to hash and
        # to compare a function for each of its lines takes long.
        self._places: dict[FunctionInfo, int] = {}
        self._functions = profile.functions
        firsts = [
            self._places.setdefault(function, at) for at, function in enumerate(profile.functions)
        ]
        self._of_lines: dict[tuple[int, int, str], _LineSizes] = {}
        for entry, line in zip(profile.entries, lines_of(profile), strict=True):
            key = firsts[entry.code_id], line.line, line.device
            sizes = self._of_lines.get(key)
            if sizes is None:
                sizes = self._of_lines[key] = _LineSizes()
            temporary = entry.stats.get("temporary", 0)
            sizes.peak = max(sizes.peak, line.peak)
            sizes.add_hits(entry.hits, entry.kept, entry.freed, line.own)
            sizes.temporary = max(sizes.temporary, temporary)
            if line.calls:
                sizes.is_caller = True
            else:
                sizes.own_temporary = max(sizes.own_temporary, temporary)

    def of_table(self, table: FunctionTable) -> dict[int, _LineSizes]:
        """The sizes of the lines of a function on a device."""
        place, device = self._places.get(table.function, -1), table.device.name
        return {
            line: self._of_lines.get((place, line, device)) or _LineSizes() for line in table.rows
        }

    def highest(self, device: str) -> tuple[FunctionLine | None, int]:
        """The line with the highest peak of a device; of several, one that adds to it itself."""
        peaks = [
            (
                -sizes.peak,
                sizes.kept <= sizes.freed and not sizes.temporary,
                self._functions[place].filename,
                line,
                place,
            )
            for (place, line, name), sizes in self._of_lines.items()
            if name == device and sizes.peak and not sizes.is_caller
        ]
        if not peaks:
            return None, 0
        first = min(peaks, key=itemgetter(0, 1, 2, 3))
        return FunctionLine(self._functions[first[-1]], first[-2]), -first[0]


class _Function:
    """A function on a device, with the sizes that order it."""

    def __init__(
        self, table: FunctionTable, sizes: _Sizes, peaks: set[tuple[FunctionLine | None, str]]
    ) -> None:
        self.table = table
        self.sizes = sizes.of_table(table)
        of_table = {
            place.line
            for place, device in peaks
            if place is not None
            and device == table.device.name
            and place.function == table.function
        }
        self.peak_line = next((line for line in table.rows if line in of_table), None)
        self.lines = [line for line in table.rows if self._is_listed(line)]
        all_sizes = list(self.sizes.values())
        self.peak = max(sizes.peak for sizes in all_sizes)
        own = {line: (sizes.hits, sizes.own) for line, sizes in self.sizes.items()}
        self.adds = added_by_call(table.function, own)
        self.temporary = max(sizes.own_temporary for sizes in all_sizes)

    def shown(self, most: int | None, sort: str | None) -> ShownFunction:
        if most is None:
            return ShownFunction(self.table, None, self.peak_line)
        chosen = sorted(self.lines, key=lambda line: self._rank(line, sort))[:most]
        return ShownFunction(self.table, tuple(sorted(chosen)), self.peak_line)

    def _is_listed(self, line: int) -> bool:
        """True if a line added or freed memory, or has a note that its numbers may be too low."""
        sizes = self.sizes[line]
        if sizes.kept or sizes.freed or sizes.temporary or self._is_marked(line):
            return True
        approximations = self.table.approximations.get(line)
        return approximations is not None and any(
            approximation.kind is not ApproximationKind.ESTIMATED
            for approximation in approximations
        )

    def _is_marked(self, line: int) -> bool:
        return line == self.peak_line or line in self.table.failed

    def _rank(self, line: int, sort: str | None) -> tuple[bool, int]:
        sizes = self.sizes[line]
        by = {"peak": sizes.peak, "kept": sizes.kept, "temporary": sizes.temporary}
        moved = max(sizes.kept, sizes.freed) + sizes.temporary
        return not self._is_marked(line), -by.get(sort or "", moved)


_ORDERS: Final[Mapping[str, Callable[[_Function], Any]]] = {
    "": lambda function: -(function.adds + function.temporary),
    "peak": lambda function: -function.peak,
    "kept": lambda function: -function.adds,
    "temporary": lambda function: -function.temporary,
    "name": lambda function: function.table.function.qual_name,
    "line": lambda function: (function.table.function.filename, function.table.function.first_line),
}
SORTS: Final = tuple(filter(None, _ORDERS))
"""Orders of functions; without one, those that add most come first."""


def _headlines(profile: RecordedProfile, sizes: _Sizes) -> Iterable[Headline]:
    in_use = [device for device in profile.devices if device.peak_active]
    verdict_of = {verdict.measured.device.name: verdict for verdict in verdicts(profile)}
    uncounted = uncounted_devices(profile)
    for measured in in_use or profile.devices[:1]:
        name = measured.device.name
        place, peak = sizes.highest(name)
        held = profile.peaks.get(name)
        is_whole = held is not None and held.peak.active == measured.peak_active
        categories = tuple(held.by_category()) if held is not None and is_whole else ()
        lines = _held_lines(held, place) if held is not None and is_whole else ()
        growing = next((loop for loop in profile.growing if loop.device == name), None)
        at = None
        if growing is not None:
            at = FunctionLine(profile.functions[growing.function], growing.line)
        unprofiled = _unprofiled(profile, held) if held is not None and is_whole else ()
        is_at_least = name in uncounted and measured.peak_at_most is None
        bound = bound_of([_AT_LEAST * is_at_least, measured.assumed_sizes])
        yield Headline(
            measured,
            place,
            peak,
            categories,
            verdict_of.get(name),
            bound,
            lines,
            growing,
            at,
            unprofiled,
        )


def _held_lines(held: PeakHolders, peak: FunctionLine | None) -> tuple[HeldLine, ...]:
    """The lines that hold most, if they are others than the line of the peak alone."""
    held_lines = []
    for line in held.by_line()[:_HELD_LINES]:
        if line.size * _WORTH >= held.peak.active:
            below = held.below(line)
            is_most = 2 * sum(line_below.size for line_below in below) >= line.size
            held_lines.append(HeldLine(line, tuple(below) if is_most else ()))
    if len(held_lines) == 1 and not held_lines[0].below and peak is not None:
        [held_line] = held_lines
        if (held_line.holder.file, held_line.holder.line) == (peak.function.filename, peak.line):
            return ()
    return tuple(held_lines)


def _unprofiled(profile: RecordedProfile, held: PeakHolders) -> tuple[Holder, ...]:
    profiled = {function.filename for function in profile.functions}
    largest = [line for line in held.by_line() if line.line][:_UNPROFILED]
    if not largest or largest[0].file in profiled:
        return ()
    return tuple(line for line in largest if line.file not in profiled)


def _failure(profile: RecordedProfile) -> Failure | None:
    ended = any(run.exit_status != 0 for run in profile.runs)
    if profile.failures and ended:
        # In the order of the traceback, the innermost line last.
        (function, line), asked = list(profile.failures.items())[-1]
        return Failure(FunctionLine(profile.functions[function], line), asked)
    if any(run.exception.startswith(OUT_OF_MEMORY) for run in profile.runs):
        return Failure(None, None)
    return None
