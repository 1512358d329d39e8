"""The notes of a report in words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .._common.quoted import listed
from .._common.switch import SWITCHED_OFF
from ..records import (
    Approximated,
    CpuTensors,
    EditedFunctions,
    FilesNotWritten,
    FunctionsThatDidNotRun,
    IdleDevices,
    NoFunctions,
    PeakShare,
    SimulatedGpus,
    StaleSources,
    SwitchedOff,
    TracingEnded,
)
from . import approximations

if TYPE_CHECKING:
    from ..records import Note

_NAMED_FILES = 10


def texts(notes: Iterable[Note]) -> tuple[str, ...]:
    """A sentence for each note."""
    return tuple(map(text, notes))


def text(note: Note) -> str:
    """One note in words.

    >>> text(IdleDevices(("cuda:1",)))
    'no memory was in use on cuda:1: no table'
    """
    match note:
        case str():
            return note
        case SwitchedOff():
            return SWITCHED_OFF
        case SimulatedGpus():
            return f"simulated GPU: {note.description} ({', '.join(note.devices)})"
        case CpuTensors():
            why = "" if note.has_gpu else "no GPU here: "
            return (
                f"{why}CPU tensors were measured, of the storages that ops made while profiled "
                "functions ran"
            )
        case Approximated():
            return approximations.sentence(note.approximations)
        case PeakShare():
            return approximations.share(note)
        case FilesNotWritten():
            return _files(note)
        case TracingEnded():
            return _end(note)
        case _:
            return _about_functions(note)


def _about_functions(
    note: FunctionsThatDidNotRun | EditedFunctions | StaleSources | IdleDevices | NoFunctions,
) -> str:
    match note:
        case FunctionsThatDidNotRun():
            until = "before tracing ended" if note.tracing_ended else "while profiled"
            return f"{listed(note.functions)} did not run {until}"
        case EditedFunctions():
            return (
                f"{listed(note.functions)} was edited since: these lines are of the version "
                "before; make another LineProfiler"
            )
        case StaleSources():
            return (
                f"{listed(note.functions)}: the file has changed since it was loaded, so there is "
                "no source to show; reload it"
            )
        case IdleDevices():
            return f"no memory was in use on {listed(note.devices)}: no table"
        case NoFunctions():
            return "no function was registered, see LineProfiler(function) and @profile"


def _files(note: FilesNotWritten) -> str:
    named, more = note.paths[:_NAMED_FILES], len(note.paths) - _NAMED_FILES
    rest = f" and {more} more" if more > 0 else ""
    return f"not written, for tensors of a dry run have no values: {', '.join(named)}{rest}"


def _end(note: TracingEnded) -> str:
    tracing, lines = "tracing", "lines"
    if not note.in_main_thread:
        tracing, lines = "tracing of a thread", "its lines"
    when = "until it began again" if note.began_again else "later"
    return f"{tracing} ended {note.where}: {lines} that ran {when} are missing"
