"""A recorded profile as JSON, and back. Reading executes nothing, and checks every field.

Note [Layout of a saved profile]
The object begins with ``format`` and ``version``, so that what is cut off is still known.
Functions, devices, fields and rows of statistics stand once, and lines name them by their index:
most lines share their row with others, and most fields are zero in all of them (``zero_fields``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from os import PathLike
from typing import Any, Final

from .._common.quoted import quoted
from .._common.secrets_in_arguments import masked
from ..errors import ProfileError
from ..profiles.recorded import Call, RecordedProfile, Run
from ..records import ASSUMED_SIZES, Approximation, DeviceInfo, LineEntry, mean
from . import tests_file
from .checked import (
    DamagedError,
    a_list,
    an_object,
    count,
    data_of,
    index,
    member,
    number,
    reader_of,
    record,
    rows,
    seconds,
)
from .document import FileFormat
from .files import read_text
from .histories import history_data, holders_data, read_history, read_holders

FORMAT: Final = FileFormat(
    "pytorch_memlab.profile",
    3,  # 2 held sums over all hits
    noun="profile of pytorch_memlab",
    damaged="a damaged profile",
)

NO_HISTORY: Final = "the profile has no history: record it with run --history"

_texts: Final = reader_of(tuple[str, ...])


def text_of(profile: RecordedProfile, digest: Mapping[str, Any] | None = None) -> str:
    """The profile as one JSON document, of a rank with its digest near the beginning.

    Its notes are in words: see ``render.notes.in_words``.
    """
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
        data["histories"] = {run: history_data(one) for run, one in profile.histories.items()}
    return FORMAT.text_of(data)


def load(text: str, file: str) -> RecordedProfile:
    """The profile that ``text_of`` made the text of."""
    if tests_file.FORMAT.begins(text):
        raise ProfileError(
            f"{file} has the memory of tests: pytorch-memlab diff compares two such files"
        )
    return FORMAT.load(text, file, _profile)


def read(path: str | PathLike[str]) -> RecordedProfile:
    """The profile in a file.

    Raises:
        ProfileError: the file is no saved profile; the message says what it is.
    """
    return load(read_text(path), os.fspath(path))


def _lines_data(profile: RecordedProfile) -> dict[str, object]:
    names = list(dict.fromkeys(name for entry in profile.entries for name in entry.stats))
    devices = {one.device.name: place for place, one in enumerate(profile.devices)}
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


def _profile(data: dict[str, Any]) -> RecordedProfile:
    for name in ("shown", "notes", "ends", "sections", "peaks", "failures", "history"):
        member(data, name)  # files of all releases have them, though records have defaults
    history, histories = data["history"], data.get("histories", {})
    profile = record(
        RecordedProfile,
        data,
        runs=tuple([run_of(one) for one in a_list("runs", member(data, "runs"))]),
        entries=(),
        calls=(),
        failures={},
        peaks={
            name: read_holders(one, name.rpartition(" ")[0])
            for name, one in an_object("peaks", data["peaks"]).items()
        },
        history=None if history is None else read_history(history),
        histories={
            run: read_history(one) for run, one in an_object("histories", histories).items()
        },
    )
    functions = len(profile.functions)
    profile = replace(
        profile,
        entries=tuple(_entries(data, functions, [one.device for one in profile.devices])),
        calls=reader_of(tuple[Call, ...])("calls", _calls(data)),
        failures={
            (index("failures", one, functions), count("failures", line)): count("failures", size)
            for one, line, size in rows(data, "failures", 3)
        },
    )
    _check_references(profile)
    return profile


def run_of(data: object) -> Run:
    """A run, of this or of an older release, which wrote its arguments as they were."""
    arguments = masked(_texts("arguments", member(an_object("runs", data), "arguments")))
    return record(Run, data, arguments=arguments)


def _calls(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The calls; those of version 2 have another name of their bytes."""
    calls = [an_object("calls", one) for one in a_list("calls", member(data, "calls"))]
    return [{"added": one.get("delta"), **one} for one in calls]


def _check_references(profile: RecordedProfile) -> None:
    """Refuse what names a function or a device that is not there."""
    names = {one.device.name for one in profile.devices}
    if len(names) < len(profile.devices):
        raise DamagedError("two devices have one name")
    for device in profile.devices:
        if device.assumed_sizes not in {"", *(kind.value for kind in ASSUMED_SIZES)}:
            raise DamagedError(f"{quoted(device.assumed_sizes)} is no bound of assumed sizes")
    functions = len(profile.functions)
    for shown in profile.shown or ():
        index("shown", shown, functions)
    for call in profile.calls:
        index("callee", call.callee, functions)
        index("caller", call.caller or 0, functions)
        if not call.added.keys() <= names:
            raise DamagedError("a call names a device that is not there")
    for loop in profile.growing:
        index("function", loop.function, functions)
        if loop.device not in names:
            raise DamagedError("a loop names a device that is not there")
    for section in profile.sections:
        if any(len(values) != len(section.columns) for _, values in section.rows):
            raise DamagedError("a row of a section has other values than the columns")


def _entries(
    data: Mapping[str, Any], functions: int, devices: Sequence[DeviceInfo]
) -> Iterator[LineEntry]:
    stats = _statistics(data)
    approximations = _approximations(data)
    seen = set()
    is_older = data["version"] < FORMAT.version
    for place, line in enumerate(rows(data, "lines", 7 if is_older else 8)):
        function, source_line, device, hits, time, *sizes, row = line
        hits = count("lines", hits)
        key = (
            index("lines", function, functions),
            count("lines", source_line),
            index("lines", device, len(devices)),
        )
        if key in seen:
            raise DamagedError("a line is there twice")
        seen.add(key)
        yield LineEntry(
            key[0],
            key[1],
            devices[key[2]],
            hits,
            seconds("lines", time),
            *_kept_and_freed(hits, sizes),
            {} if row is None else stats[index("lines", row, len(stats))],
            tuple(approximations.pop(place, ())),
        )
    if approximations:
        raise DamagedError("gaps name a line that is not there")


def _kept_and_freed(hits: int, sizes: list[Any]) -> tuple[int, int]:
    """Both sizes of a hit; the least that they can be in a file that has their difference alone."""
    if len(sizes) == 2:
        kept, freed = (count("lines", size) for size in sizes)
        return kept, freed
    delta = mean(number("lines", sizes[0]), hits)
    return max(delta, 0), max(-delta, 0)


def _statistics(data: Mapping[str, Any]) -> list[Mapping[str, int]]:
    fields = _texts("fields", member(data, "fields"))
    zero = set(_texts("zero_fields", member(data, "zero_fields")))
    kept = [name for name in fields if name not in zero]
    zeros = dict.fromkeys(fields, 0)
    found: list[Mapping[str, int]] = []
    for row in rows(data, "rows", len(kept)):
        stats = zeros.copy()
        for name, value in zip(kept, row, strict=True):
            if value is None:
                del stats[name]
            else:
                stats[name] = number("rows", value)
        found.append(stats)
    return found


def _approximations(data: Mapping[str, Any]) -> dict[int, list[Approximation]]:
    found: dict[int, list[Approximation]] = {}
    for line, value in rows(data, "gaps", 2):
        one = record(Approximation, value, "gaps")
        found.setdefault(count("gaps", line), []).append(one)
    return found
