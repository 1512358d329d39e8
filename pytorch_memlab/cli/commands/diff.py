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

from ..._common.prose_size import prose_size
from ..._common.standard_output import print_to_stdout
from ...errors import UsageError
from ..common_options import add_rows
from ..parser import CommandParser

if TYPE_CHECKING:
    from ...profiles.changed_tests import MeasuredTest


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
    from ...line_profiler.saved_profile import load
    from ...profiles.changed_tests import changed_tests
    from ...profiles.differences import compare, growth_limit
    from ...render import differences, memory_of_tests

    is_too_much = growth_limit("--fail-over", options.fail_over)
    names = options.before, options.after
    tests = _tests_in(*names)
    if tests is not None:
        changed = changed_tests(*tests)
        text = memory_of_tests.differences(names, changed, options.rows)
        too_large = [
            memory_of_tests.grew(one, options.fail_over)
            for one in changed
            if one.change is not None and is_too_much(one.change)
        ]
    else:
        before, after = load(options.before).recorded(), load(options.after).recorded()
        found = compare(before, after)
        text = differences.text(names, before, after, found, options.rows)
        too_large = [
            f"{device.name}: the active peak grew by {prose_size(device.active.growth)}"
            f" ({differences.percent(device.active)}), more than {options.fail_over}"
            for device in found.devices
            if is_too_much(device.active)
        ]
    return partial(_show, text, too_large)


def _tests_in(*files: str) -> list[dict[str, MeasuredTest]] | None:
    """The tests that pytest saved in both files; None for two profiles."""
    from ...line_profiler.saved_profile import read_text
    from ...render import saved_tests

    texts = {file: read_text(file) for file in files}
    of_tests = [file for file, text in texts.items() if saved_tests.is_tests(text)]
    if not of_tests:
        return None
    others = [file for file in texts if file not in of_tests]
    if others:
        raise UsageError(
            f"{of_tests[0]} has the memory of tests and {others[0]} has not: compare two of one"
            " kind"
        )
    return [saved_tests.load(texts[file], file) for file in files]


def _show(text: str, too_large: list[str]) -> int:
    print_to_stdout(text)
    for line in too_large:
        print(f"pytorch-memlab diff: {line}", file=sys.stderr)
    return 1 if too_large else 0
