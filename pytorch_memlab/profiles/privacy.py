"""Profiles without arguments, messages of errors and absolute paths."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final

from .._common.text.shared_paths import private, private_text
from ..records import NoteKind, Remark, Report
from .changed_tests import MeasuredTest
from .job import Job
from .recorded import RecordedProfile, Run

_CLASS: Final = re.compile(r"[\w.]+(?=:|$)")
_COMMANDS: Final = frozenset({NoteKind.COMMANDS_STARTED, NoteKind.COMMANDS_REFUSED})


def without_private_facts(profile: RecordedProfile) -> RecordedProfile:
    """A profile without arguments, tracebacks, messages, and absolute paths in its texts."""
    # The paths of its files stay, by which the source is found; see Note [Private files].
    entries = (
        replace(entry, approximations=_without_paths(entry.approximations))
        if entry.approximations
        else entry
        for entry in profile.entries
    )
    return replace(
        profile,
        runs=tuple(map(_private_run, profile.runs)),
        entries=tuple(entries),
        notes=_without_paths(profile.notes),
        ends=_without_paths(profile.ends),
        sections=_without_paths(profile.sections),
        # A message of an error can have anything in it.
        errors=tuple(
            replace(_without_paths(error), traceback="")
            for error in profile.errors
            if error.explanation
        ),
    )


def private_report(report: Report) -> Report:
    """The tables of a profile without absolute paths in what is said of them."""
    tables = (
        replace(
            table,
            approximations={
                line: _without_paths(approximations)
                for line, approximations in table.approximations.items()
            },
        )
        for table in report.tables
    )
    return replace(
        report,
        tables=tuple(tables),
        notes=_without_paths(report.notes),
        sections=_without_paths(report.sections),
    )


def private_job(job: Job) -> Job:
    """The answer for a job without messages of errors and folders."""
    ends = (
        replace(end, line=private(end.line), state=_private_state(end.state)) for end in job.ends
    )
    notes = tuple(map(private_text, job.notes))
    return replace(job, program=private(job.program), ends=tuple(ends), notes=notes)


def private_test(test: MeasuredTest) -> MeasuredTest:
    """The memory of a test without folders outside of its project."""
    lines = (replace(line, file=private(line.file)) for line in test.holders)
    return replace(test, holders=tuple(lines))


def _private_state(state: str) -> str:
    """The name of an error alone; other ends of a process have no message."""
    return state.partition(":")[0]


def _private_run(run: Run) -> Run:
    named = _CLASS.match(run.exception)
    exception = named[0] if named else "an exception" if run.exception else ""
    return replace(
        run,
        program=private(run.program),
        arguments=(),
        exception=exception,
        last_line=private(run.last_line),
    )


def _without_paths(value: Any) -> Any:
    """The same data, with no absolute path in any of its texts."""
    if isinstance(value, str):
        return private_text(value)
    if isinstance(value, Remark) and value.kind in _COMMANDS:
        return replace(value, names=tuple(private(name.split(" ")[0]) for name in value.names))
    if isinstance(value, tuple):
        return tuple(map(_without_paths, value))
    if is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: _without_paths(getattr(value, field.name)) for field in fields(value)}
        return replace(value, **parts)
    return value
