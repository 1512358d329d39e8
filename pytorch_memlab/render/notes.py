"""The notes of a report in words, and marks for what a simulation did not know."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from .._common.process.switch import SWITCHED_OFF
from .._common.text.prose_size import counted, prose_size
from .._common.text.quoted import listed
from ..records import (
    Approximated,
    Approximation,
    ApproximationKind,
    FunctionTable,
    Note,
    NoteKind,
    PeakShare,
    Remark,
    TracingEnded,
    mark,
    merge_approximations,
    remarks_on_files,
)

if TYPE_CHECKING:
    from ..fitting.trial import Trial
    from ..profiles.recorded import RecordedProfile

_NAMED_IN_LINE = 3
_NAMED_IN_ALL = 5
_LINES_WITH_NOTES = 10

_HEADS = {
    ApproximationKind.UNMODELLED: "not modelled",
    ApproximationKind.UNCOUNTED: "not counted",
    ApproximationKind.ESTIMATED: "estimated",
    ApproximationKind.ASSUMED: "dry run",
    ApproximationKind.AT_MOST: "sizes assumed, at most",
    ApproximationKind.AT_LEAST: "sizes assumed, at least",
    ApproximationKind.EITHER: "sizes assumed, more or less",
    ApproximationKind.GIVEN: "sizes given by --assume",
}
_TAILS = {
    ApproximationKind.UNMODELLED: "only outputs are counted, so the true peak may be higher",
    ApproximationKind.UNCOUNTED: "the true peak may be higher",
    ApproximationKind.ESTIMATED: "the true peak may differ",
    ApproximationKind.ASSUMED: "a real run may branch differently",
    ApproximationKind.AT_MOST: "the true peak may be lower; --assume gives the sizes",
    ApproximationKind.AT_LEAST: "the true peak may be higher; --assume gives the sizes",
    ApproximationKind.EITHER: "the true peak may differ; --assume gives the sizes",
    ApproximationKind.GIVEN: "",
}

_BOUNDS = {
    "at most": "at most that",
    "at least": "at least that",
    "more or less": "neither at most nor at least that",
}
"""Of a peak, by its ``bound``."""

_CPU = "CPU tensors were measured, of the storages that ops made while profiled functions ran"
_REMARKS = {
    NoteKind.SWITCHED_OFF: SWITCHED_OFF,
    NoteKind.SIMULATED_GPUS: "simulated GPU: {description} ({all})",
    NoteKind.CPU_TENSORS: _CPU,
    NoteKind.CPU_TENSORS_WITHOUT_GPU: f"no GPU here: {_CPU}",
    NoteKind.FILES_NOT_CHANGED: "left as it was by the dry run ({count}): {all}",
    NoteKind.COMMANDS_STARTED: "not held back by the dry run ({count}): {all}",
    NoteKind.COMMANDS_REFUSED: "not started without --allow-writes ({count}): {all}",
    NoteKind.UNMET_ASSUMPTIONS: (
        "--assume {all}: nothing there assumed a size, for the values were known or no such op ran"
    ),
    NoteKind.STALE_SOURCES: (
        "{names}: the file has changed since it was loaded, so there is no source to show; reload"
        " it"
    ),
    NoteKind.EDITED_FUNCTIONS: (
        "{names} was edited since: these lines are of the version before; make another LineProfiler"
    ),
    NoteKind.DID_NOT_RUN: "{names} did not run while profiled",
    NoteKind.DID_NOT_RUN_BEFORE_END: "{names} did not run before tracing ended",
    NoteKind.IDLE_DEVICES: "no memory was in use on {names}: no table",
    NoteKind.KEPT_AT_LEAST: (
        "kept and freed are at least the numbers of {names}: hardware counts bytes, and does not"
        " tell which ones a line freed; delta is exact"
    ),
    NoteKind.EVENTS_DROPPED: (
        "{names}: the history has the last {description} events, as it is limited: its timeline and"
        " replays begin there, and all other figures are of the whole run"
    ),
    NoteKind.EVENTS_MAY_BE_MISSING: (
        "{names}: the history has the last {description} events, which is its limit, so that"
        " earlier ones may be missing: what held the peak, the timeline and replays are of these"
    ),
    NoteKind.NO_FUNCTIONS: ("no function was registered, see LineProfiler(function) and @profile"),
}


def texts(notes: Iterable[Note]) -> tuple[str, ...]:
    """A sentence for each note."""
    return tuple(map(text, notes))


def in_words(profile: RecordedProfile) -> RecordedProfile:
    """A profile whose notes are sentences, as files keep them."""
    return replace(profile, notes=texts(profile.notes), ends=texts(profile.ends))


def text(note: Note) -> str:
    """One note in words.

    >>> text(Remark(NoteKind.IDLE_DEVICES, ("cuda:1",)))
    'no memory was in use on cuda:1: no table'
    """
    match note:
        case str():
            return note
        case Remark(kind, names, description):
            return _REMARKS[kind].format(
                names=listed(names),
                all=", ".join(names),
                count=counted(len(names), _COUNTED.get(kind, "name")),
                description=description,
            )
        case Approximated():
            return sentence(note.approximations)
        case PeakShare():
            return share(note)
        case TracingEnded(where, in_main_thread, began_again):
            thread, its = ("", "") if in_main_thread else (" of a thread", "its ")
            when = "until it began again" if began_again else "later"
            return f"tracing{thread} ended {where}: {its}lines that ran {when} are missing"


_COUNTED = {
    NoteKind.FILES_NOT_CHANGED: "path",
    NoteKind.COMMANDS_STARTED: "command",
    NoteKind.COMMANDS_REFUSED: "command",
}


def line_mark(table: FunctionTable, line: int) -> str:
    """The sign behind the number of a line of a table."""
    return "!" if line in table.failed else mark(table.approximations.get(line, ()))


def line_notes(approximations: Sequence[Approximation]) -> list[str]:
    """Notes on one line, a sentence for each kind of approximation."""
    anywhere = merge_approximations(
        replace(approximation, place="") for approximation in approximations
    )
    return [
        f"{_HEADS[kind]}: {_named(alike, _NAMED_IN_LINE)}"
        + (f": {_TAILS[kind]}" if kind is ApproximationKind.ASSUMED else "")
        for kind, alike in _by_kind(anywhere)
    ]


def table_notes(table: FunctionTable) -> list[str]:
    """Notes below a table: a few of its marked lines, estimates only where there is room."""
    lines = sorted(
        table.approximations, key=lambda line: (mark(table.approximations[line]) == "~", line)
    )
    notes = [
        f"line {line}: {note}"
        for line in sorted(lines[:_LINES_WITH_NOTES])
        for note in line_notes(table.approximations[line])
    ]
    others = len(lines) - _LINES_WITH_NOTES
    if others > 0:
        notes.append(f"and {counted(others, 'more line')} marked above")
    return notes


def summary(approximations: Iterable[Approximation]) -> list[str]:
    """Notes below all tables, a sentence for each kind of approximation."""
    return [sentence(alike) for _, alike in _by_kind(approximations)]


def summary_of_runs(runs: Iterable[Trial]) -> list[str]:
    """Notes on some runs of ``fit``, each once: approximations, sizes, files and commands."""
    runs = list(runs)
    names = dict.fromkeys(name for run in runs for name in run.unmet)
    unmet = [name for name in names if all(name in run.unmet for run in runs)]
    return [
        *summary(
            {
                approximation.key: approximation
                for run in runs
                for approximation in run.approximations
            }.values()
        ),
        *texts([Remark(NoteKind.UNMET_ASSUMPTIONS, tuple(unmet))] if unmet else []),
        *texts(remarks_on_files(run.files for run in runs)),
    ]


def sentence(approximations: Sequence[Approximation]) -> str:
    """The note on all approximations of one kind."""
    ((kind, ordered),) = _by_kind(approximations)
    tail = f": {_TAILS[kind]}" if _TAILS[kind] else ""
    return f"{_HEADS[kind]}: {_named(ordered, _NAMED_IN_ALL)}{tail}"


def kind_of(note: Note) -> ApproximationKind | None:
    """The kind of approximation that a note, also one of a saved profile, sums up."""
    if isinstance(note, Approximated):
        return note.approximations[0].kind
    heads = ((kind, f"{head}: ") for kind, head in _HEADS.items())
    return next(
        (kind for kind, head in heads if isinstance(note, str) and note.startswith(head)), None
    )


def share(peak: PeakShare) -> str:
    """The share of a GPU's peak that is exact, in a sentence.

    >>> mean = Approximation(ApproximationKind.ESTIMATED, "mean", 1, 512)
    >>> share(PeakShare("cuda:0", 1000, 13, (mean,)))
    'cuda:0: 98.7% of the peak of 1000 B is exact, 1.3% (13 B) estimated'
    """
    whole = f"the peak of {prose_size(peak.active)}"
    if peak.estimated:
        # Rounded down: what is not all exact is never 100%.
        exact = (peak.active - peak.estimated) * 1000 // peak.active
        estimated = "100%" if not exact else f"{(1000 - exact) / 10:.1f}%"
        parts = [f"{exact / 10:.1f}% of {whole} is exact"]
        parts.append(f"{estimated} ({prose_size(peak.estimated)}) estimated")
    else:
        parts = [f"no estimate is part of {whole}"]
    by_kind = dict(_by_kind(peak.approximations))
    memory = dict.fromkeys(
        approximation.unknown for approximation in by_kind.get(ApproximationKind.UNCOUNTED, ())
    )
    ops = dict.fromkeys(
        approximation.name for approximation in by_kind.get(ApproximationKind.UNMODELLED, ())
    )
    uncounted = [_enumerated([*memory], "kinds of memory")] if memory else []
    if ops:
        uncounted.append(f"kernel memory of {_enumerated([*ops], 'ops')}")
    if uncounted:
        most = "" if peak.at_most is None else f" (at most {prose_size(peak.at_most)} with them)"
        parts.append(f"{', '.join(uncounted)} not counted{most}")
    if ApproximationKind.ASSUMED in by_kind:
        parts.append("if the assumed values hold")
    if peak.assumed_sizes:
        parts.append(f"{_BOUNDS[peak.bound]}, as sizes are assumed")
    return f"{peak.device}: {', '.join(parts)}"


def _enumerated(names: Sequence[str], noun: str) -> str:
    """A few names.

    >>> _enumerated(["mv", "mm", "bmm", "dot", "lu"], "ops")
    'mv, mm, bmm and 2 more ops'
    """
    others = len(names) - _NAMED_IN_LINE
    if others > 0:
        names = [*names[:_NAMED_IN_LINE], f"{others} more {noun}"]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _by_kind(
    approximations: Iterable[Approximation],
) -> list[tuple[ApproximationKind, list[Approximation]]]:
    """The approximations of each kind that there is, the largest first."""
    ordered = sorted(
        approximations,
        key=lambda approximation: (
            -approximation.nbytes,
            -approximation.calls,
            approximation.name,
            approximation.place,
        ),
    )
    kinds = [
        (kind, [approximation for approximation in ordered if approximation.kind is kind])
        for kind in ApproximationKind
    ]
    return [(kind, alike) for kind, alike in kinds if alike]


def _named(approximations: Sequence[Approximation], most: int) -> str:
    named = ", ".join(map(_name, approximations[:most]))
    return named + (f" and {len(approximations) - most} more" if len(approximations) > most else "")


def _name(approximation: Approximation) -> str:
    name, count = approximation.name, approximation.calls
    calls, size = counted(count, "call"), prose_size(approximation.nbytes)
    in_all = " in all" if count > 1 else ""
    match approximation.kind:
        case ApproximationKind.UNMODELLED:
            return f"{name} ({calls}, {size} of outputs{in_all})"
        case ApproximationKind.UNCOUNTED:
            bound = ""
            if approximation.at_most is not None:
                bound = f", at most {prose_size(approximation.at_most)}{' each' * (count > 1)}"
            return f"{approximation.unknown} of {name} ({calls}{bound})"
        case ApproximationKind.ESTIMATED:
            return f"{name} ({calls}, {size} of kernel memory{in_all})"
    place = f" at {approximation.place}" if approximation.place else ""
    times = "once" if count == 1 else f"{count} times"
    assumed = "assumed " if approximation.kind is ApproximationKind.ASSUMED else ""
    return f"{name}{place} ({times}, {assumed}{approximation.assumption})"
