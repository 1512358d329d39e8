"""Several profiles as one: of the ranks of one run, or of several runs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count, groupby

from .._common.text.quoted import listed
from ..columns import OverHits, column_of
from ..errors import UsageError
from ..records import FunctionInfo, FunctionTable, Report, merge_approximations
from .recorded import RecordedCall, RecordedProfile


def merged(profiles: Mapping[str, RecordedProfile]) -> RecordedProfile:
    """One profile that has the lines of all, each device under the label of its run."""
    # Runs are labelled by their ranks if these differ, or else by their order.
    _check_programs(profiles)
    profiles_in_order = list(profiles.values())
    labels = _labels(profiles_in_order)
    functions: dict[tuple[FunctionInfo, int], int] = {}
    parts = [
        renumbered(_labelled(profile, label), _places(profile.functions, functions))
        for profile, label in zip(profiles_in_order, labels, strict=True)
    ]
    runs = [run for part in parts for run in part.runs]
    for label, times in Counter(run.label for run in runs).items():
        if times > 1:
            raise UsageError(f"{label} is twice in {', '.join(profiles)}: merge each run once")
    shown_functions = dict.fromkeys(number for part in parts for number in part.shown or ())
    return RecordedProfile(
        tuple(runs),
        tuple(device for part in parts for device in part.devices),
        tuple(function for function, _ in functions),
        tuple(entry for part in parts for entry in part.entries),
        added_up(call for part in parts for call in part.calls),
        profiles_in_order[0].columns,
        None if all(part.shown is None for part in profiles_in_order) else tuple(shown_functions),
        tuple(dict.fromkeys(note for part in parts for note in part.notes)),
        tuple(dict.fromkeys(end for part in parts for end in part.ends)),
        tuple(
            replace(section, title=f"{label}: {section.title}" if label else section.title)
            for label, part in zip(labels, parts, strict=True)
            for section in part.sections
        ),
        peaks={name: held for part in parts for name, held in part.peaks.items()},
        failures={place: size for part in parts for place, size in part.failures.items()},
        histories={label: history for part in parts for label, history in part.histories.items()},
        growing=tuple(loop for part in parts for loop in part.growing),
        errors=tuple(dict.fromkeys(error for part in parts for error in part.errors)),
    )


def renumbered(part: RecordedProfile, places: Sequence[int]) -> RecordedProfile:
    """A profile that names its functions, all of those that it shows too, by other indexes."""
    shown_functions = range(len(part.functions)) if part.shown is None else part.shown
    if all(place == number for number, place in enumerate(places)):
        return replace(part, shown=tuple(shown_functions))
    return replace(
        part,
        entries=tuple(replace(entry, code_id=places[entry.code_id]) for entry in part.entries),
        calls=tuple(
            replace(
                call,
                callee=places[call.callee],
                caller=None if call.caller is None else places[call.caller],
            )
            for call in part.calls
        ),
        shown=tuple(places[number] for number in shown_functions),
        failures={
            (places[function], line): size for (function, line), size in part.failures.items()
        },
        growing=tuple(replace(loop, function=places[loop.function]) for loop in part.growing),
    )


def added_up(calls: Iterable[RecordedCall]) -> tuple[RecordedCall, ...]:
    """The calls, those of one line of one function together."""
    sums: dict[tuple[int, int | None, str, str, int], RecordedCall] = {}
    for call in calls:
        key = (call.callee, call.caller, call.filename, call.function, call.line)
        former = sums.get(key)
        if former is not None:
            added = dict(former.added)
            for name, size in call.added.items():
                added[name] = added.get(name, 0) + size
            call = replace(call, hits=former.hits + call.hits, added=added)
        sums[key] = call
    return tuple(sums.values())


def over_devices(report: Report) -> Report:
    """The tables of a merged profile, one for each function, over all of its devices."""
    groups = [list(group) for _, group in groupby(report.tables, lambda table: table.function)]
    names = [table.device.name for group in groups for table in group]
    note = f"max, min and sums are over {listed(names)}"
    columns = tuple(
        name
        for column in report.columns
        for name in ([column] if _adds_up(column) else [f"{column} max", f"{column} min"])
    )
    tables = tuple(_over_devices(group, report.columns) for group in groups)
    return replace(report, columns=columns, tables=tables, notes=(*report.notes, note))


def _adds_up(column: str) -> bool:
    return column_of(column).over_hits is OverHits.SUM


def _over_devices(tables: Sequence[FunctionTable], columns: Sequence[str]) -> FunctionTable:
    lines = sorted({line for table in tables for line in table.rows})
    rows = {}
    for line in lines:
        present = [table.rows[line] for table in tables if line in table.rows]
        values: list[int | float | None] = []
        for place, column in enumerate(columns):
            recorded = [row[place] for row in present]
            numbers = [value for value in recorded if value is not None]
            if _adds_up(column):
                values.append(sum(numbers))
            else:
                values += [max(numbers, default=None), min(numbers, default=None)]
        rows[line] = tuple(values)
    approximations = {
        line: merge_approximations(
            approximation
            for table in tables
            for approximation in table.approximations.get(line, ())
        )
        for line in lines
        if any(line in table.approximations for table in tables)
    }
    device = replace(tables[0].device, name="all devices")
    failed = {line: size for table in tables for line, size in table.failed.items()}
    return replace(
        tables[0], device=device, rows=rows, approximations=approximations, failed=failed
    )


def _check_programs(profiles: Mapping[str, RecordedProfile]) -> None:
    programs = {
        name: os.path.basename(run.program)
        for name, profile in profiles.items()
        for run in profile.runs
    }
    first, program = next(iter(programs.items()))
    for name, other in programs.items():
        if other != program:
            raise UsageError(
                f"{first} is of {program or 'a notebook'} and {name} of {other or 'a notebook'}:"
                " ranks or runs of one program are merged; pytorch-memlab diff compares two"
            )


def _labels(profiles: Sequence[RecordedProfile]) -> list[str]:
    """A label for each profile of one run; empty for merged ones, which have labels."""
    runs = [run for profile in profiles for run in profile.runs]
    taken = {run.label for run in runs}
    are_ranks = len({run.rank for run in runs}) == len(runs)
    if are_ranks or any(label.startswith("rank") for label in taken):
        return [
            "" if profile.runs[0].label else f"rank{profile.runs[0].rank}" for profile in profiles
        ]
    free = (label for number in count(1) if (label := f"run{number}") not in taken)
    return ["" if profile.runs[0].label else next(free) for profile in profiles]


def _labelled(profile: RecordedProfile, label: str) -> RecordedProfile:
    if not label:
        return profile
    devices = [device.device for device in profile.devices]
    names = {device: replace(device, name=f"{label} {device.name}") for device in devices}
    return replace(
        profile,
        runs=tuple(replace(run, label=label) for run in profile.runs),
        devices=tuple(replace(device, device=names[device.device]) for device in profile.devices),
        entries=tuple(replace(entry, device=names[entry.device]) for entry in profile.entries),
        calls=tuple(
            replace(call, added={f"{label} {name}": size for name, size in call.added.items()})
            for call in profile.calls
        ),
        peaks={
            f"{label} {name}": replace(held, peak=replace(held.peak, run=label))
            for name, held in profile.peaks.items()
        },
        growing=tuple(replace(loop, device=f"{label} {loop.device}") for loop in profile.growing),
        history=None,
        histories={} if profile.history is None else {label: profile.history},
    )


def _places(
    part: Sequence[FunctionInfo], functions: dict[tuple[FunctionInfo, int], int]
) -> list[int]:
    """Indexes among all functions; equal ones of one profile, as of a reload, stay apart."""
    counts: Counter[FunctionInfo] = Counter()
    places = []
    for function in part:
        places.append(functions.setdefault((function, counts[function]), len(functions)))
        counts[function] += 1
    return places
