"""The differences between two profiles, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from .._common.text.prose_size import prose_size, signed
from .._common.text.quoted import printable
from ..profiles.differences import Differences, LineChange, SizeChange
from ..profiles.recorded import RecordedProfile
from ..records import hardware
from .page import fill
from .rows import WIDTH, code_of, cut_place, document, padded, place_of, ranked
from .run_notes import command
from .table import Table

_HOLDER: Final = WIDTH - 37  # behind the change and both sizes
_OWN: Final = "lines that add more or less themselves, without the functions that they call:"
_PEAKS: Final = "lines whose peak is higher or lower:"


def text(
    names: tuple[str, str],
    before: RecordedProfile,
    after: RecordedProfile,
    differences: Differences,
    rows: int,
) -> str:
    """The peaks of both profiles, and the lines that changed most."""
    heads = []
    for name, profile in zip(names, (before, after), strict=True):
        run, others = profile.runs[0], len(profile.runs) - 1
        more = f" and {others} more" if others else ""
        heads.append(f"{name}: {command(run)}{more}, recorded on {run.started or 'an unknown day'}")
    parts = [
        [*heads, *warnings(before, after)],
        _peaks(differences),
        _lines(
            _OWN,
            [(line, line.own) for line in differences.own()],
            rows,
        )
        or ["every line adds as much as before"],
        _lines(
            _PEAKS,
            [(line, line.peak) for line in differences.peaks()],
            rows,
        )
        or ["the peak of every line is as it was"],
        *_holders(differences, rows),
    ]
    return document(*parts)


@dataclass(frozen=True, slots=True)
class ChangedRow:
    """A size in both profiles, in a table."""

    name: str
    change: SizeChange
    share: float  # of the largest growth in its table, which its bar shows
    code: str = ""


@dataclass(frozen=True, slots=True)
class ChangeTable:
    """Sizes of one kind in both profiles, the largest change first."""

    title: str
    head: str  # of the names
    rows: tuple[ChangedRow, ...]

    @property
    def has_code(self) -> bool:
        """True if its names are lines of code."""
        return any(row.code for row in self.rows)


def change_tables(differences: Differences) -> list[ChangeTable]:
    """Tables of the peaks, of the lines, and of what held the peaks; none of them is empty."""
    kinds = ("active", "allocated", "reserved")
    peaks = [
        (f"{device.name} {kind}", getattr(device, kind), "")
        for device in differences.devices
        for kind in kinds
    ]
    several = len(differences.devices) > 1
    tables = [
        _change_table("the peaks:", "peak", peaks),
        _change_table(
            _OWN, "line", [_row(line, line.own, several=several) for line in differences.own()]
        ),
        _change_table(
            _PEAKS, "line", [_row(peak, peak.peak, several=several) for peak in differences.peaks()]
        ),
    ]
    for held in differences.holders:
        changes = [(printable(name), change, "") for name, change in held.changes if change.growth]
        title = f"held at the peak of {held.device}, by {held.by}:"
        tables.append(_change_table(title, held.by, changes))
    return [table for table in tables if table.rows]


def _change_table(
    title: str, head: str, changes: Sequence[tuple[str, SizeChange, str]]
) -> ChangeTable:
    most = max((abs(change.growth) for _, change, _ in changes), default=0) or 1
    rows = [
        ChangedRow(name, change, abs(change.growth) / most, code) for name, change, code in changes
    ]
    return ChangeTable(title, head, tuple(rows))


def fragment(
    before: RecordedProfile, after: RecordedProfile, differences: Differences, rows: int
) -> str:
    """The same for a notebook: tables of the peaks, of the lines, and of what held the peaks."""
    same = "" if differences.own() or differences.peaks() else ": every line has the same memory"
    return fill(
        "profile_difference.html",
        heading=programs(before, after) + same,
        warnings=warnings(before, after),
        tables=change_tables(differences),
        most=rows,
        signed=change_of,
    )


def programs(before: RecordedProfile, after: RecordedProfile) -> str:
    """The programs of both profiles, or that they are of one program."""
    first, other = command(before.runs[0]), command(after.runs[0])
    return f"two runs of {first}" if first == other else f"{first}, then {other}"


def _row(line: LineChange, change: SizeChange, *, several: bool) -> tuple[str, SizeChange, str]:
    where = place_of(line.function, line.line) + _former(line)
    device = f"  on {line.device}" if several else ""
    return where + device, change, code_of(line.function, line.line)


def change_of(size: int) -> str:
    """A change with its sign.

    >>> change_of(-(3 << 20)), change_of(512), change_of(0)
    ('-3.0 MiB', '+512 B', '0 B')
    """
    return signed(size, "+" if size else "")


def percent(change: SizeChange) -> str:
    """The growth of a size for its first value."""
    if not change.growth:
        return ""
    if not change.before:
        return "new"
    return f"{change.growth / change.before:+.1%}"


def warnings(before: RecordedProfile, after: RecordedProfile) -> list[str]:
    """Notes on differences that make two profiles hard to compare."""
    sentences = []
    first_run, other = before.runs[0], after.runs[0]
    if command(first_run).split(" ")[0] != command(other).split(" ")[0]:
        sentences.append(
            "warning: these are different programs: functions are matched by their names"
        )
    if first_run.is_dry_run != other.is_dry_run:
        sentences.append("warning: one of the runs simulated shapes only")
    kinds = [
        dict.fromkeys(
            hardware(device.device.description, device.device.simulated) for device in devices
        )
        for devices in (before.devices, after.devices)
    ]
    if kinds[0] != kinds[1]:
        first, then = (" and ".join(names) or "none" for names in kinds)
        sentences.append(f"warning: the devices differ: {first}, then {then}")
    for name in ("torch", "cuda"):
        versions = first_run.versions.get(name), other.versions.get(name)
        if versions[0] != versions[1]:
            sentences.append(
                f"warning: the versions of {name} differ: {versions[0]}, then {versions[1]}"
            )
    return sentences


def _peaks(differences: Differences) -> list[str]:
    lines: list[str] = []
    for device in differences.devices:
        rows = []
        for kind in ("active", "allocated", "reserved"):
            change: SizeChange = getattr(device, kind)
            sizes = prose_size(change.before), prose_size(change.after)
            name = f"  peak {kind}".ljust(17)
            rows.append((name, *sizes, change_of(change.growth), percent(change)))
        heads = (padded(device.name, 17), "before", "after", "change", "")
        lines += Table(heads, rows, "{}{:>12}{:>12}{:>13}{:>9}").lines()
    return lines or ["no device was in use"]


def _lines(title: str, changes: Sequence[tuple[LineChange, SizeChange]], rows: int) -> list[str]:
    several = len({line.device for line, _ in changes}) > 1
    entries = []
    for line, change in changes:
        device = f"  on {line.device}" if several else ""
        where = place_of(line.function, line.line) + _former(line) + device
        code = code_of(line.function, line.line)
        entries.append((change_of(change.growth), where, f"{_sizes(change)}  {code}"))
    return ranked(title, entries, rows) if entries else []


def _sizes(change: SizeChange) -> str:
    """Both sizes; a line that ends with less than it began frees."""
    if min(change.before, change.after) >= 0:
        return f"{prose_size(change.before)} -> {prose_size(change.after)}"
    if max(change.before, change.after) <= 0:
        return f"frees {prose_size(-change.before)} -> {prose_size(-change.after)}"
    return f"{change_of(change.before)} -> {change_of(change.after)}"


def _former(line: LineChange) -> str:
    """The change of a line between the profiles."""
    if line.is_gone:
        return " (gone)"
    if line.former is None:
        return " (new)"
    function, number = line.former
    if function.qual_name != line.function.qual_name:
        return f" (was {function.qual_name}:{number})"
    if code_of(function, number) != code_of(line.function, line.line):
        return f" (edited, was line {number})" if number != line.line else " (edited)"
    return f" (was line {number})" if number != line.line else ""


def _holder(name: str) -> str:
    return cut_place(printable(name), _HOLDER)


def _holders(differences: Differences, rows: int) -> Iterator[list[str]]:
    """Tables of the changes at the peak, one for each way of adding up."""
    for holder in differences.holders:
        entries = [
            (
                change_of(change.growth),
                f"{_sizes(change):24} {_holder(name)}",
                "",
            )
            for name, change in holder.changes
            if change.growth
        ]
        if entries:
            yield ranked(f"held at the peak of {holder.device}, by {holder.by}:", entries, rows)
