"""The notes of a report in words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .. import records
from .._common.quoted import listed
from .._common.switch import SWITCHED_OFF
from . import approximations

if TYPE_CHECKING:
    from ..records import Note


def texts(notes: Iterable[Note]) -> tuple[str, ...]:
    """A sentence for each note."""
    return tuple(map(text, notes))


def text(note: Note) -> str:
    """One note in words.

    >>> text(records.IdleDevices(("cuda:1",)))
    'no memory was in use on cuda:1: no table'
    """
    match note:
        case str():
            return note
        case records.SwitchedOff():
            return SWITCHED_OFF
        case records.SimulatedGpus():
            return f"simulated GPU: {note.description} ({', '.join(note.devices)})"
        case records.CpuTensors():
            why = "" if note.has_gpu else "no GPU here: "
            return (
                f"{why}CPU tensors were measured, of the storages that ops made while profiled "
                "functions ran"
            )
        case records.Approximated():
            return approximations.sentence(note.approximations)
        case records.PeakShare():
            return approximations.share(note)
        case records.FilesNotWritten():
            return f"not written, for tensors of a dry run have no values: {listed(note.paths)}"
        case records.TracingEnded():
            thread, its = ("", "") if note.in_main_thread else (" of a thread", "its ")
            when = "until it began again" if note.began_again else "later"
            return f"tracing{thread} ended {note.where}: {its}lines that ran {when} are missing"
        case records.FunctionsThatDidNotRun():
            until = "before tracing ended" if note.tracing_ended else "while profiled"
            return f"{listed(note.functions)} did not run {until}"
        case records.EditedFunctions():
            return (
                f"{listed(note.functions)} was edited since: these lines are of the version "
                "before; make another LineProfiler"
            )
        case records.StaleSources():
            return (
                f"{listed(note.functions)}: the file has changed since it was loaded, so there is "
                "no source to show; reload it"
            )
        case records.IdleDevices():
            return f"no memory was in use on {listed(note.devices)}: no table"
        case records.NoFunctions():
            return "no function was registered, see LineProfiler(function) and @profile"
