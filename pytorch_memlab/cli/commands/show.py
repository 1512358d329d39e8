"""Show a saved profile: the report of the run, or tables of chosen columns.

The file is one that run -o FILE.json or LineProfiler.save() wrote, or a merged one, which is shown
as tables. Nothing in it is executed.

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

from ...errors import UsageError
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
from ..output import results_of, writer_to
from ..parser import CommandParser

if TYPE_CHECKING:
    from ...profiles.recorded import RecordedProfile


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
    from ...saved import profile_file

    outputs = options.outputs or ()
    choice = report_choice(options)
    if is_job(options.file):
        return prepared_job(options)
    write = writer_to(outputs, force=options.force, is_private=options.private)
    profile = profile_file.read(options.file)
    if options.private:
        profile = without_private_facts(profile)
    if options.functions is not None:
        profile = replace(profile, shown=_functions_called(options.functions, profile))
    results = results_of(profile, options.columns, choice, tells_runs=True)
    return lambda: 0 if write(results) else USAGE_ERROR


def _functions_called(names: Sequence[str], profile: RecordedProfile) -> tuple[int, ...]:
    """Indexes of functions, and of the methods of classes, under their names."""
    from ...line_profiler.source_functions import places_of, typed_name

    functions: dict[int, None] = {}
    typed_names = [typed_name(function.qual_name) for function in profile.functions]
    for name in names:
        places = places_of([name], typed_names)
        if not places:
            raise UsageError(_unknown(name, typed_names))
        functions.update(dict.fromkeys(places))
    return tuple(functions)


def _unknown(name: str, names: Sequence[str]) -> str:
    import difflib

    from ..._common.text.quoted import listed

    near = difflib.get_close_matches(name, names, n=4) or sorted(names)
    return f"there is no function {name} in the file: it has {listed(near) or 'none'}"
