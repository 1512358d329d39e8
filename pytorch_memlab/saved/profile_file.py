"""A recorded profile as JSON, and back. Reading executes nothing, and checks every field.

Note [Layout of a saved profile]
The object begins with ``format`` and ``version``, so that what is cut off is still known.
Functions, devices, fields and rows of statistics stand once, and lines name them by their index:
most lines share their row with others, and most fields are zero in all of them (``zero_fields``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from os import PathLike
from typing import Any, Final

from .._common.text.quoted import quoted
from .._common.text.secrets_in_arguments import masked
from ..profiles.recorded import (
    GrowingLoop,
    MeasuredDevice,
    ProgramError,
    RecordedCall,
    RecordedProfile,
    Run,
)
from ..records import (
    ASSUMED_SIZES,
    Approximation,
    FunctionInfo,
    LineEntry,
    Section,
    Signed,
    mean,
)
from . import tests_file
from .checked import DamagedError, a_list, an_object, count, data_of, number, record, refused, row
from .document import FileFormat
from .histories import (
    HistoryPart,
    PeakPart,
    history_data,
    holders_data,
    read_history,
    read_holders,
)

FORMAT: Final = FileFormat(
    "pytorch_memlab.profile",
    3,  # 2 held sums over all hits
    noun="profile of pytorch_memlab",
    damaged="a damaged profile",
    others={
        tests_file.FORMAT.name: "has the memory of tests: pytorch-memlab diff compares two such"
        " files"
    },
)

NO_HISTORY: Final = "the profile has no history: record it with run --history"


def text_of(profile: RecordedProfile, digest: Mapping[str, Any] | None = None) -> str:
    """The profile as one JSON document, of a rank with its digest near the beginning."""
    # Its notes are in words: see ``render.notes.in_words``.
    data = {
        **({} if digest is None else {"job": digest}),
        "runs": [data_of(run) for run in profile.runs],
        "devices": [data_of(device) for device in profile.devices],
        "columns": profile.columns,
        "shown": profile.shown,
        "notes": profile.notes,
        "ends": profile.ends,
        "functions": [data_of(function) for function in profile.functions],
        **_lines_data(profile),
        "calls": [data_of(call) for call in profile.calls],
        "sections": [data_of(section) for section in profile.sections],
        "peaks": {device: holders_data(held) for device, held in profile.peaks.items()},
        "failures": [[*place, size] for place, size in profile.failures.items()],
        "errors": [data_of(error) for error in profile.errors],
        "growing": [data_of(loop) for loop in profile.growing],
        "history": None if profile.history is None else history_data(profile.history),
    }
    if profile.histories:
        data["histories"] = {
            run: history_data(history) for run, history in profile.histories.items()
        }
    return FORMAT.text_of(data)


def load(text: str, file: str) -> RecordedProfile:
    """The profile that ``text_of`` made the text of."""
    return FORMAT.load(text, file, _profile)


def read(path: str | PathLike[str]) -> RecordedProfile:
    """The profile in a file; ProfileError says what a file is that is no saved profile."""
    return FORMAT.read(path, _profile)


def read_if_saved(path: str | PathLike[str]) -> RecordedProfile | None:
    """The profile in a file that begins as one does; None for any other file."""
    return FORMAT.read_if_one(path, _profile)


def _lines_data(profile: RecordedProfile) -> dict[str, object]:
    names = list(dict.fromkeys(name for entry in profile.entries for name in entry.stats))
    devices = {device.device.name: place for place, device in enumerate(profile.devices)}
    # Fields that every line with statistics has, and has as zero.
    stats = [entry.stats for entry in profile.entries if entry.stats]
    zero = [name for name in names if all(row.get(name) == 0 for row in stats)]
    kept = [name for name in names if name not in zero]
    rows: dict[tuple[int | None, ...], int] = {}
    lines = []
    approximations = []
    for place, entry in enumerate(profile.entries):
        row = None
        if entry.stats:
            values = tuple(entry.stats.get(name) for name in kept)
            row = rows.setdefault(values, len(rows))
        key = (
            entry.code_id,
            entry.line,
            devices[entry.device.name],
            entry.hits,
            entry.time,
            entry.kept,
            entry.freed,
            row,
        )
        lines.append(key)
        approximations += [
            [place, {**asdict(approximation), "kind": approximation.kind.value}]
            for approximation in entry.approximations
        ]
    return {
        "fields": names,
        "zero_fields": zero,
        "rows": list(rows),
        "lines": lines,
        "gaps": approximations,
    }


@dataclass(frozen=True, slots=True)
class _Profile:
    """A profile as a file has it: see Note [Layout of a saved profile]."""

    runs: tuple[Run, ...]
    devices: tuple[MeasuredDevice, ...]
    columns: tuple[str, ...]
    shown: tuple[int, ...] | None
    notes: tuple[str, ...]
    ends: tuple[str, ...]
    functions: tuple[FunctionInfo, ...]
    fields: tuple[str, ...]
    zero_fields: tuple[str, ...]
    rows: tuple[tuple[Signed | None, ...], ...]  # of the other fields
    # function, line, device, hits, time, kept, freed, row
    lines: tuple[tuple[int, int, int, int, float, int, int, int | None], ...]
    gaps: tuple[tuple[int, Approximation], ...]  # index of a line
    calls: tuple[RecordedCall, ...]
    sections: tuple[Section, ...]
    peaks: Mapping[str, PeakPart]
    failures: tuple[tuple[int, int, int], ...]  # function, line, bytes
    history: HistoryPart | None
    # Files of older releases lack these.
    histories: Mapping[str, HistoryPart] = field(default_factory=dict)
    errors: tuple[ProgramError, ...] = ()
    growing: tuple[GrowingLoop, ...] = ()


def _profile(data: dict[str, Any]) -> RecordedProfile:
    file = record(_Profile, _of_version_2(data) if data["version"] < FORMAT.version else data)
    _check_references(file)
    return RecordedProfile(
        tuple([with_masked_arguments(run) for run in file.runs]),
        file.devices,
        file.functions,
        tuple(_entries(file)),
        file.calls,
        file.columns,
        file.shown,
        file.notes,
        file.ends,
        file.sections,
        {
            name: read_holders(holders, name.rpartition(" ")[0])
            for name, holders in file.peaks.items()
        },
        {(function, line): size for function, line, size in file.failures},
        None if file.history is None else read_history(file.history),
        {run: read_history(history) for run, history in file.histories.items()},
        file.errors,
        file.growing,
    )


def with_masked_arguments(run: Run) -> Run:
    """A run of this or of an older release, which wrote its arguments as they were."""
    return replace(run, arguments=masked(run.arguments))


def _of_version_2(data: dict[str, Any]) -> dict[str, Any]:
    """A file of version 2, in which lines and calls have the sums of all hits."""
    # What a hit kept and freed is the least that they can be, with that difference.
    lines = []
    for line in a_list("lines", data.get("lines", ())):
        *place, hits, time, total, row_of_line = row("lines", line, 7)
        delta = mean(number("lines", total), count("lines", hits))
        lines.append([*place, hits, time, max(delta, 0), max(-delta, 0), row_of_line])
    calls = [an_object("calls", call) for call in a_list("calls", data.get("calls", ()))]
    return {
        **data,
        "lines": lines,
        "calls": [{"added": call.get("delta"), **call} for call in calls],
    }


def _check_references(file: _Profile) -> None:
    """Refuse what names a function, a device or a line that is not there."""
    names = {device.device.name for device in file.devices}
    if len(names) < len(file.devices):
        raise DamagedError("two devices have one name")
    for device in file.devices:
        if device.assumed_sizes not in {"", *(kind.value for kind in ASSUMED_SIZES)}:
            raise DamagedError(f"{quoted(device.assumed_sizes)} is no bound of assumed sizes")
    width = len(_fields_in_rows(file))
    for values in file.rows:
        if len(values) != width:
            raise refused("rows", list(values), f"a list of {width}")
    functions = {
        "shown": file.shown or (),
        "lines": [line[0] for line in file.lines],
        "callee": [call.callee for call in file.calls],
        "caller": [call.caller for call in file.calls if call.caller is not None],
        "failures": [failure[0] for failure in file.failures],
        "function": [loop.function for loop in file.growing],
    }
    for name, places in functions.items():
        _check_indexes(name, places, len(file.functions))
    _check_indexes("lines", [line[2] for line in file.lines], len(file.devices))
    _check_indexes("lines", [line[7] for line in file.lines if line[7] is not None], len(file.rows))
    if len({line[:3] for line in file.lines}) < len(file.lines):
        raise DamagedError("a line is there twice")
    if max((place for place, _ in file.gaps), default=-1) >= len(file.lines):
        raise DamagedError("gaps name a line that is not there")
    if not {name for call in file.calls for name in call.added} <= names:
        raise DamagedError("a call names a device that is not there")
    if not {loop.device for loop in file.growing} <= names:
        raise DamagedError("a loop names a device that is not there")
    if any(
        len(row) != len(section.columns) for section in file.sections for _, row in section.rows
    ):
        raise DamagedError("a row of a section has other values than the columns")


def _fields_in_rows(file: _Profile) -> list[str]:
    """The statistics that are not zero in all lines."""
    zero = {*file.zero_fields}
    return [name for name in file.fields if name not in zero]


def _check_indexes(name: str, places: Collection[int], length: int) -> None:
    if max(places, default=-1) >= length:
        raise refused(name, max(places), f"an index below {length}")


def _entries(file: _Profile) -> Iterator[LineEntry]:
    stats = _statistics(file)
    approximations = defaultdict[int, list[Approximation]](list)
    for place, approximation in file.gaps:
        approximations[place].append(approximation)
    for place, (function, line, device, hits, time, kept, freed, of_stats) in enumerate(file.lines):
        yield LineEntry(
            function,
            line,
            file.devices[device].device,
            hits,
            time,
            kept,
            freed,
            {} if of_stats is None else stats[of_stats],
            tuple(approximations.get(place, ())),
        )


def _statistics(file: _Profile) -> list[Mapping[str, int]]:
    kept = _fields_in_rows(file)
    zeros = dict.fromkeys(file.fields, 0)
    statistics: list[Mapping[str, int]] = []
    for values in file.rows:
        stats = zeros.copy()
        for name, value in zip(kept, values, strict=True):
            if value is None:
                del stats[name]
            else:
                stats[name] = value
        statistics.append(stats)
    return statistics
