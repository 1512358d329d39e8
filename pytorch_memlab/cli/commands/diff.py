"""Show what grew and what shrank from one saved profile to another.

Functions match by their file and name, and lines by their code, also where the file was edited
between the runs. Two files of pytest --memlab-save are compared test by test.

for example:
  pytorch-memlab diff before.memlab.json after.memlab.json
  pytorch-memlab diff --fail-over 5% main.memlab.json branch.memlab.json
  pytorch-memlab diff main-tests.json branch-tests.json

exit codes:
  0  the profiles were compared
  1  the active peak of a device, or of a test, grew by more than --fail-over
  2  the command line cannot be carried out
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from pytorch_memlab._common.standard_output import print_to_stdout
from pytorch_memlab.cli.common_options import add_rows
from pytorch_memlab.cli.parser import CommandParser
from pytorch_memlab.errors import UsageError

if TYPE_CHECKING:
    from pytorch_memlab.profiles.changed_tests import MeasuredTest
    from pytorch_memlab.profiles.differences import Change, Differences


def add_arguments(parser: CommandParser) -> None:
    add_rows(parser.group("what to show"))
    parser.group("for scripts")(
        "--fail-over SHARE|SIZE",
        "exit with 1 if the active peak of a device, or of a test, grew by more than this,"
        " such as 5%% or 64MiB",
    )
    parser.add("BEFORE", "a saved profile")
    parser.add("AFTER", "the one to compare with it")


def prepare(options: argparse.Namespace, _process: ExitStack, /) -> Callable[[], int]:
    from pytorch_memlab.line_profiler.saved_profile import load
    from pytorch_memlab.profiles.differences import compare, growth_limit
    from pytorch_memlab.render import differences

    is_too_much = growth_limit("--fail-over", options.fail_over)
    tests = _tests_in(options.before, options.after)
    if tests is not None:
        return partial(_show, *_compared(tests, options, is_too_much))
    before, after = load(options.before).recorded(), load(options.after).recorded()
    found = compare(before, after)
    names = options.before, options.after
    text = differences.text(names, before, after, found, options.rows)
    return partial(_show, text, _too_large(found, is_too_much, options.fail_over))


def _tests_in(*files: str) -> list[dict[str, MeasuredTest]] | None:
    """The tests that pytest saved in both files; None for two profiles."""
    from pytorch_memlab.line_profiler.saved_profile import read_text
    from pytorch_memlab.render import saved_tests

    texts = {file: read_text(file) for file in files}
    of_tests = [file for file, text in texts.items() if saved_tests.is_tests(text)]
    if not of_tests:
        return None
    others = [file for file in texts if file not in of_tests]
    if others:
        raise UsageError(
            f"{of_tests[0]} has the memory of tests and {others[0]} is no such file: compare two of"
            " one kind"
        )
    return [saved_tests.load(texts[file], file) for file in files]


def _compared(
    tests: list[dict[str, MeasuredTest]],
    options: argparse.Namespace,
    is_too_much: Callable[[Change], bool],
) -> tuple[str, list[str]]:
    """The text on the tests of two files, and the sentences on those that grew too much."""
    from pytorch_memlab.profiles.changed_tests import changed_tests
    from pytorch_memlab.render import memory_of_tests

    found = changed_tests(*tests)
    grown = [one for one in found if one.change is not None and is_too_much(one.change)]
    text = memory_of_tests.differences((options.before, options.after), found, options.rows)
    return text, [memory_of_tests.grew(one, options.fail_over) for one in grown]


def _too_large(
    found: Differences, is_too_much: Callable[[Change], bool], limit: str | None
) -> list[str]:
    from pytorch_memlab._common.prose_size import prose_size
    from pytorch_memlab.render.differences import percent

    return [
        f"{device.name}: the active peak grew by {prose_size(device.active.growth)}"
        f" ({percent(device.active)}), more than {limit}"
        for device in found.devices
        if is_too_much(device.active)
    ]


def _show(text: str, too_large: list[str]) -> int:
    print_to_stdout(text)
    for line in too_large:
        print(f"pytorch-memlab diff: {line}", file=sys.stderr)
    return 1 if too_large else 0
