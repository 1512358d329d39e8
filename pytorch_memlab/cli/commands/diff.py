"""Show what grew and what shrank from one saved profile to another.

Functions match by their file and name, and lines by their code, also where the file was edited
between the runs. Two files of pytest --memlab-save are compared test by test.

for example:
  pytorch-memlab diff before.memlab.json after.memlab.json
  pytorch-memlab diff -o changes.html before.memlab.json after.memlab.json
  pytorch-memlab diff --fail-over 5% main.memlab.json branch.memlab.json
  pytorch-memlab diff main-tests.json branch-tests.json

exit codes:
  0  the profiles were compared
  1  the active peak of a device, or of a test, grew by more than --fail-over
  2  the command line cannot be carried out, or a file of -o was not written
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from ..._common.process.standard_output import print_to_stdout
from ..._common.text.prose_size import prose_size
from ...errors import UsageError
from ...render.output_format import ComparedProfiles, ComparedTests, ComparisonResults
from ..common_options import add_output_files, add_private, add_rows
from ..exit_codes import USAGE_ERROR
from ..output import OutputFile
from ..parser import CommandParser

if TYPE_CHECKING:
    from ...profiles.changed_tests import MeasuredTest


def add_arguments(parser: CommandParser) -> None:
    add_rows(parser.group("what to show"))
    add = parser.group("output")
    add_output_files(
        add,
        "write a file instead: text, or a page with both runs side by side and their timelines on"
        " one axis (.txt, .html); repeatable",
    )
    add_private(add, "the file, or the text")
    parser.group("for scripts")(
        "--fail-over SHARE|SIZE",
        "exit with 1 if the active peak of a device, or of a test, grew by more than this,"
        " such as 5%% or 64MiB",
    )
    parser.add("BEFORE", "a saved profile")
    parser.add("AFTER", "the one to compare with it")


def prepare(options: argparse.Namespace, _process: ExitStack, /) -> Callable[[], int]:
    from ...profiles.differences import growth_limit

    growth_limit("--fail-over", options.fail_over)
    is_private = options.private
    outputs = options.outputs or ()
    files = [OutputFile(path, ComparisonResults, is_private=is_private) for path in outputs]
    tests = _tests_in(options.before, options.after)
    compared, too_large = _of_profiles(options) if tests is None else _of_tests(options, tests)
    return partial(_show, ComparisonResults(compared), too_large, files, is_private=is_private)


def _of_profiles(options: argparse.Namespace) -> tuple[ComparedProfiles, list[str]]:
    """The comparison of two profiles, and what grew too much."""
    from ...profiles.differences import compare, growth_limit
    from ...profiles.privacy import without_private_facts
    from ...render.differences import percent
    from ...saved import profile_file

    is_too_much = growth_limit("--fail-over", options.fail_over)
    names = options.before, options.after
    before, after = profile_file.read(options.before), profile_file.read(options.after)
    if options.private:
        before, after = without_private_facts(before), without_private_facts(after)
    differences = compare(before, after)
    too_large = [
        f"{device.name}: the active peak grew by {prose_size(device.active.growth)}"
        f" ({percent(device.active)}), more than {options.fail_over}"
        for device in differences.devices
        if is_too_much(device.active)
    ]
    return ComparedProfiles(names, before, after, differences, options.rows), too_large


def _of_tests(
    options: argparse.Namespace, tests: Sequence[dict[str, MeasuredTest]]
) -> tuple[ComparedTests, list[str]]:
    from ...profiles.changed_tests import changed_tests
    from ...profiles.differences import growth_limit
    from ...render import memory_of_tests

    is_too_much = growth_limit("--fail-over", options.fail_over)
    names = options.before, options.after
    changed = changed_tests(*tests)
    too_large = [
        memory_of_tests.grew(test, options.fail_over)
        for test in changed
        if test.change is not None and is_too_much(test.change)
    ]
    return ComparedTests(names, changed, options.rows), too_large


def _tests_in(*files: str) -> list[dict[str, MeasuredTest]] | None:
    """The tests that pytest saved in both files; None for two profiles."""
    from ...saved import tests_file
    from ...saved.document import read_text

    texts = {file: read_text(file) for file in files}
    of_tests = [file for file, text in texts.items() if tests_file.FORMAT.begins(text)]
    if not of_tests:
        return None
    others = [file for file in texts if file not in of_tests]
    if others:
        raise UsageError(
            f"{of_tests[0]} has the memory of tests and {others[0]} has not: compare two of one"
            " kind"
        )
    return [tests_file.load(texts[file], file) for file in files]


def _show(
    compared: ComparisonResults,
    too_large: Sequence[str],
    files: Sequence[OutputFile[ComparisonResults]],
    *,
    is_private: bool,
) -> int:
    from ..._common.text.shared_paths import private_names
    from ...render.outputs.comparison_files import ComparisonText

    if not files:
        with private_names(is_private):
            print_to_stdout(ComparisonText(".txt").render(compared))
    written = [file.write(compared, "comparison") for file in files]
    for line in too_large:
        print(f"pytorch-memlab diff: {line}", file=sys.stderr)
    if not all(written):
        return USAGE_ERROR
    return 1 if too_large else 0
