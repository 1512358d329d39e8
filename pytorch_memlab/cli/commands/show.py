"""Show a saved profile: the report of the run, or tables of chosen columns.

The file is one that run -o FILE.json or LineProfiler.save() wrote; a file of tables alone, as
older releases wrote it, is shown too. So is a merged one, as tables. Nothing in it is executed.

Of the folder of a job, also of one that goes on, show tells in at most 60 lines which rank needs
most memory and why, which one failed first and where, which ranks are alike, and the lines that
differ most between ranks.

for example:
  pytorch-memlab show train.memlab.json
  pytorch-memlab show --sort peak --top 3 train.memlab.json
  pytorch-memlab show -c peak,delta,hits -f Net.forward train.memlab.json
  pytorch-memlab show -o train.html train.memlab.json
  pytorch-memlab show job.memlab
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from ...errors import ProfileError, UsageError
from ...profiles.overview import Choice
from ...profiles.privacy import without_private_facts
from ..common_options import (
    add_functions_and_columns,
    add_output_files,
    add_private,
    add_report_options,
    report_choice,
)
from ..exit_codes import USAGE_ERROR
from ..jobs import is_job, prepared_job
from ..output import LIMITS, Results, is_profile, results_of, writer_to
from ..parser import CommandParser

if TYPE_CHECKING:
    from ...profiles.recorded import RecordedProfile
    from ...records import Report


def add_arguments(parser: CommandParser) -> None:
    add = parser.group("what to show")
    add_functions_and_columns(
        add,
        "show only these functions or classes; separated by commas, repeatable (default:"
        " those that the run showed)",
        "show tables of these columns, as run takes them (default: what the run showed)",
    )
    add_report_options(add)
    add = parser.group("output")
    add_output_files(
        add,
        "write a file instead: text, a page, or a profile that shows these functions and"
        " columns (.txt, .html, .json); repeatable",
    )
    add("--force", "overwrite the .json file of an older run", action="store_true")
    add_private(add, "the file, or the text")
    parser.add("FILE", "the saved profile, or the folder of a job")


def prepare(options: argparse.Namespace, _process: ExitStack, /) -> Callable[[], int]:
    from ...line_profiler.saved_profile import read_text
    from ...render import saved_profile

    outputs = options.outputs or ()
    choice = report_choice(options)
    if is_job(options.file):
        return prepared_job(options)
    write = writer_to(outputs, force=options.force, is_private=options.private)
    text = read_text(options.file)
    if saved_profile.is_of_format_1(text):
        if any(map(is_profile, outputs)):
            raise UsageError(
                f"{options.file} has the tables alone (format 1): end the output in .txt, .html"
            )
        if choice not in (None, Choice()):
            raise UsageError(f"{options.file} has the tables alone (format 1): {LIMITS}")
        try:
            report = saved_profile.load_tables(text)
        except UsageError as error:
            raise ProfileError(f"{options.file}: {error}") from None
        results = Results(_part(report, options.functions, options.columns))
    else:
        profile = saved_profile.load(text, options.file)
        if options.private:
            profile = without_private_facts(profile)
        if options.functions is not None:
            profile = replace(profile, shown=_functions_called(options.functions, profile))
        results = results_of(profile, options.columns, choice, tells_runs=True)
    return lambda: 0 if write(results) else USAGE_ERROR


def _functions_called(names: Sequence[str], profile: RecordedProfile) -> tuple[int, ...]:
    """Indexes of functions, and of the methods of classes, under their names."""
    from ...line_profiler.source_functions import places_of, typed_name

    found: dict[int, None] = {}
    known = [typed_name(function.qual_name) for function in profile.functions]
    for name in names:
        places = places_of([name], known)
        if not places:
            raise UsageError(_unknown(name, known))
        found.update(dict.fromkeys(places))
    return tuple(found)


def _part(report: Report, functions: Sequence[str] | None, columns: Sequence[str] | None) -> Report:
    """The functions and columns asked for."""
    tables = report.tables
    if functions is not None:
        known = {table.function.qual_name for table in tables}
        for name in functions:
            if name not in known:
                raise UsageError(_unknown(name, known))
        tables = tuple(table for table in tables if table.function.qual_name in functions)
    if columns is None:
        return replace(report, tables=tables)
    for column in columns:
        if column not in report.columns:
            raise UsageError(f"the file has no column {column}: it has {', '.join(report.columns)}")
    places = [report.columns.index(column) for column in columns]
    tables = tuple(
        replace(
            table,
            rows={line: tuple(row[place] for place in places) for line, row in table.rows.items()},
        )
        for table in tables
    )
    return replace(report, columns=tuple(columns), tables=tables)


def _unknown(name: str, known: Sequence[str] | set[str]) -> str:
    import difflib

    from ..._common.quoted import listed

    near = difflib.get_close_matches(name, known, n=4) or sorted(known)
    return f"there is no function {name} in the file: it has {listed(near) or 'none'}"
