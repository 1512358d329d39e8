"""A recorded profile as JSON, and back. Reading executes nothing, and checks every field.

Note [Layout of a saved profile]
The object begins with ``format`` and ``version``, so that what is cut off is still known.
Functions, devices, fields and rows of statistics stand once, and lines name them by their index:
most lines share their row with others, and most fields are zero in all of them (``zero_fields``).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from os import PathLike
from typing import Any, Final

from .._common.ipython import source_name
from .._common.quoted import quoted
from .._common.secrets_in_arguments import masked
from .._common.shared_paths import restored, stored
from .._common.version import __version__
from ..errors import ProfileError
from ..profiles.recorded import (
    Call,
    GrowingLoop,
    MeasuredDevice,
    ProgramError,
    RecordedProfile,
    Run,
    ShownRemedy,
)
from ..records import (
    ASSUMED_SIZES,
    Approximation,
    ApproximationKind,
    DeviceInfo,
    FunctionInfo,
    LineEntry,
    Section,
    mean,
)
from . import tests_file
from .checked_json import Checked, DamagedError, check_version
from .checksum import check, with_checksum
from .files import read_text
from .histories import history_data, holders_data, read_history, read_holders

FORMAT: Final = "pytorch_memlab.profile"
VERSION: Final = 3
"""Version 2 held sums over all hits."""

NO_HISTORY: Final = "the profile has no history: record it with run --history"

_BEGINNING: Final = re.compile(r'\s*\{\s*"format"\s*:\s*"pytorch_memlab\.profile"')


_LATER_SIZES: Final = ("private", "nccl", "nccl_at_least", "nccl_at_most")
"""Sizes of a device that older files lack."""

_NEWER: Final = (
    *("local_rank", "node", "attempt", "launcher"),
    *("written", "save_every", "last_line"),
)
_NEWER_FACTS: Final[dict[str, Any]] = {
    one.name: one.default for one in fields(Run) if one.name in _NEWER
}
"""Facts of a run that files of older releases do not have."""


def text_of(profile: RecordedProfile, digest: Mapping[str, Any] | None = None) -> str:
    """The profile as one JSON document, of a rank with its digest near the beginning."""
    data = {
        "format": FORMAT,
        "version": VERSION,
        "written_by": __version__,
        **({} if digest is None else {"job": digest}),
        "runs": [{**asdict(run), "program": stored(run.program)} for run in profile.runs],
        "devices": [asdict(device) for device in profile.devices],
        "columns": profile.columns,
        "shown": profile.shown,
        "notes": profile.notes,
        "ends": profile.ends,
        "functions": [
            {**asdict(function), "filename": stored(source_name(function.filename))}
            for function in profile.functions
        ],
        **_lines_data(profile),
        "calls": [{**asdict(call), "filename": stored(call.filename)} for call in profile.calls],
        "sections": [asdict(section) for section in profile.sections],
        "peaks": {device: holders_data(held) for device, held in profile.peaks.items()},
        "failures": [[*place, size] for place, size in profile.failures.items()],
        "errors": [asdict(error) for error in profile.errors],
        "growing": [asdict(loop) for loop in profile.growing],
        "history": None if profile.history is None else history_data(profile.history),
    }
    if profile.histories:
        data["histories"] = {run: history_data(one) for run, one in profile.histories.items()}
    return with_checksum(json.dumps(data, allow_nan=False, separators=(",", ":")))


def load(text: str, called: str) -> RecordedProfile:
    """The profile that ``text_of`` made the text of."""
    data = _document(text, called)
    saved_format = data.get("format")
    if saved_format == tests_file.FORMAT:
        raise ProfileError(
            f"{called} has the memory of tests: pytorch-memlab diff compares two such files"
        )
    if saved_format != FORMAT or type(data.get("version")) is not int:
        raise ProfileError(f"{called} is JSON, but no profile of pytorch_memlab")
    check(text, data, called)
    check_version(data, VERSION, called)
    try:
        return _profile(Checked(data))
    except DamagedError as error:
        raise ProfileError(f"{called} is a damaged profile: {error}") from None


def read(path: str | PathLike[str]) -> RecordedProfile:
    """The profile in a file.

    Raises:
        ProfileError: the file is no saved profile; the message says what it is.
    """
    return load(read_text(path), os.fspath(path))


def _document(text: str, called: str) -> dict[str, Any]:
    """The object in the text."""
    try:
        data = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        if _BEGINNING.match(text):
            where = str(error) or "it is nested too deep"
            if isinstance(error, json.JSONDecodeError):
                where = f"its JSON ends or breaks at character {error.pos:,}"
            raise ProfileError(f"{called} is cut off or damaged: {where}") from None
        raise ProfileError(f"{called} is not a profile of pytorch_memlab: it is no JSON") from None
    if not isinstance(data, dict):
        raise ProfileError(f"{called} is JSON, but no profile of pytorch_memlab")
    return data


def _refuse_constant(name: str) -> None:
    """Refuse NaN and infinity, which are no JSON."""
    raise ValueError(f"{name} is no number")


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
    for number, entry in enumerate(profile.entries):
        row = None
        if entry.stats:
            values = tuple(entry.stats.get(name) for name in kept)
            row = rows.setdefault(values, len(rows))
        place = devices[entry.device.name]
        key = (
            entry.code_id,
            entry.line,
            place,
            entry.hits,
            entry.time,
            entry.kept,
            entry.freed,
            row,
        )
        lines.append(key)
        approximations += [
            [number, {**asdict(approximation), "kind": approximation.kind.value}]
            for approximation in entry.approximations
        ]
    return {
        "fields": names,
        "zero_fields": zero,
        "rows": list(rows),
        "lines": lines,
        "gaps": approximations,
    }


def _profile(data: Checked) -> RecordedProfile:
    devices = tuple(
        one.record(
            MeasuredDevice,
            device=one.object("device").record(DeviceInfo),
            assumed_sizes=_assumed_sizes(one),
            retries=one.count("retries") if one.has("retries") else 0,
            peak_at_most=_bound(one, "peak_at_most"),
            uncounted_at_most=_bound(one, "uncounted_at_most"),
            needed_at_most=_bound(one, "needed_at_most"),
            **{name: one.count(name) if one.has(name) else 0 for name in _LATER_SIZES},
        )
        for one in data.objects("devices")
    )
    functions = tuple(_function(one) for one in data.objects("functions"))
    names = [one.device.name for one in devices]
    if len(set(names)) < len(names):
        raise DamagedError("two devices have one name")
    index, count = data.index, data.count
    shown = data.value("shown")
    histories = data.by_name("histories", Checked.object) if data.has("histories") else {}
    return RecordedProfile(
        tuple(run_of(one) for one in data.objects("runs")),
        devices,
        functions,
        tuple(_entries(data, len(functions), [one.device for one in devices])),
        tuple(_call(one, len(functions), names) for one in data.objects("calls")),
        data.texts("columns"),
        None if shown is None else data.indexes("shown", len(functions)),
        data.texts("notes"),
        data.texts("ends"),
        tuple(_section(one) for one in data.objects("sections")),
        {
            name: read_holders(one, name.rpartition(" ")[0])
            for name, one in data.by_name("peaks", Checked.object).items()
        },
        {
            (index("failures", len(functions), one), count("failures", line)): count("failures", n)
            for one, line, n in data.rows("failures", 3)
        },
        None if data.value("history") is None else read_history(data.object("history")),
        {run: read_history(one) for run, one in histories.items()},
        tuple(map(_error, data.objects("errors"))) if data.has("errors") else (),
        tuple(_growing(one, len(functions), names) for one in data.objects("growing"))
        if data.has("growing")
        else (),
    )


def _assumed_sizes(device: Checked) -> str:
    """The bound that sizes of a dry run are; older files do not have it."""
    sizes = device.text("assumed_sizes") if device.has("assumed_sizes") else ""
    if sizes and sizes not in {kind.value for kind in ASSUMED_SIZES}:
        raise DamagedError(f"{quoted(sizes)} is no bound of assumed sizes")
    return sizes


def _bound(data: Checked, name: str) -> int | None:
    """Bytes, if they are known; older files do not have them."""
    return data.count(name) if data.has(name) else None


def _section(data: Checked) -> Section:
    columns = data.texts("columns")
    rows = []
    for name, values in data.rows("rows", 2):
        if not isinstance(name, str) or not isinstance(values, list):
            raise DamagedError("a row of a section has no name or no values")
        checked = (one if one is None else data.number("rows", one) for one in values)
        rows.append((name, tuple(checked)))
        if len(values) != len(columns):
            raise DamagedError("a row of a section has other values than the columns")
    return Section(data.text("title"), columns, tuple(rows), data.texts("notes"))


def _error(data: Checked) -> ProgramError:
    remedies = (one.record(ShownRemedy) for one in data.objects("remedies"))
    return data.record(ProgramError, remedies=tuple(remedies), notes=data.texts("notes"))


def _growing(data: Checked, functions: int, devices: Collection[str]) -> GrowingLoop:
    if data.text("device") not in devices:
        raise DamagedError("a loop names a device that is not there")
    return data.record(GrowingLoop, function=data.index("function", functions))


def run_of(data: Checked) -> Run:
    """A run, of this or of an older release."""
    status = data.value("exit_status")
    status = None if status is None else data.number("exit_status")
    arguments = masked(data.texts("arguments"))  # an older release wrote them as they were
    program = restored(data.text("program"))
    newer = {name: default for name, default in _NEWER_FACTS.items() if not data.has(name)}
    return data.record(Run, exit_status=status, arguments=arguments, program=program, **newer)


def _function(data: Checked) -> FunctionInfo:
    """A function with its source."""
    source = data.value("source")
    folded = data.rows("folded", 2) if data.has("folded") else ()
    return data.record(
        FunctionInfo,
        filename=restored(data.text("filename")),
        source=None if source is None else data.texts("source"),
        folded=tuple(tuple(data.count("folded", line) for line in pair) for pair in folded),
    )


def _call(data: Checked, functions: int, devices: Iterable[str]) -> Call:
    caller = data.value("caller")
    added = data.by_name("added" if data.has("added") else "delta", Checked.number)
    if not added.keys() <= set(devices):
        raise DamagedError("a call names a device that is not there")
    return data.record(
        Call,
        filename=restored(data.text("filename")),
        callee=data.index("callee", functions),
        caller=None if caller is None else data.index("caller", functions),
        added=added,
    )


def _entries(data: Checked, functions: int, devices: list[DeviceInfo]) -> Iterator[LineEntry]:
    stats = _statistics(data)
    approximations = _approximations(data)
    seen = set()
    is_older = data.number("version") < VERSION
    for number, line in enumerate(data.rows("lines", 7 if is_older else 8)):
        function, place, device, hits, time, *sizes, row = line
        hits = data.count("lines", hits)
        key = (
            data.index("lines", functions, function),
            data.count("lines", place),
            data.index("lines", len(devices), device),
        )
        if key in seen:
            raise DamagedError("a line is there twice")
        seen.add(key)
        yield LineEntry(
            key[0],
            key[1],
            devices[key[2]],
            hits,
            data.seconds("lines", time),
            *_kept_and_freed(data, hits, sizes),
            {} if row is None else stats[data.index("lines", len(stats), row)],
            tuple(approximations.pop(number, ())),
        )
    if approximations:
        raise DamagedError("gaps name a line that is not there")


def _kept_and_freed(data: Checked, hits: int, sizes: list[Any]) -> tuple[int, int]:
    """Both sizes of a hit; the least that they can be in a file that has their difference alone."""
    if len(sizes) == 2:
        kept, freed = (data.count("lines", size) for size in sizes)
        return kept, freed
    delta = mean(data.number("lines", sizes[0]), hits)
    return max(delta, 0), max(-delta, 0)


def _statistics(data: Checked) -> list[Mapping[str, int]]:
    fields, zero = data.texts("fields"), set(data.texts("zero_fields"))
    kept = [name for name in fields if name not in zero]
    zeros = dict.fromkeys(fields, 0)
    rows: list[Mapping[str, int]] = []
    for row in data.rows("rows", len(kept)):
        stats = zeros.copy()
        for name, value in zip(kept, row, strict=True):
            if value is None:
                del stats[name]
            else:
                stats[name] = data.number("rows", value)
        rows.append(stats)
    return rows


def _approximations(data: Checked) -> dict[int, list[Approximation]]:
    approximations: dict[int, list[Approximation]] = {}
    for number, value in data.rows("gaps", 2):
        found = _approximation(data.object("gaps", value))
        approximations.setdefault(data.count("gaps", number), []).append(found)
    return approximations


def _approximation(data: Checked) -> Approximation:
    """An approximation of a simulation."""
    kind = data.text("kind")
    if kind not in {one.value for one in ApproximationKind}:
        raise DamagedError(f"{quoted(kind)} is no kind of gap")
    unknown = data.text("unknown") if data.has("unknown") else ""
    return data.record(
        Approximation,
        kind=ApproximationKind(kind),
        unknown=unknown,
        at_most=_bound(data, "at_most"),
        gives_way=data.has("gives_way") and data.flag("gives_way"),
    )
