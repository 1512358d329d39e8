"""Show the lines of a saved profile that add most, and those with the highest peaks.

A line that calls a profiled function is charged with what it keeps itself, without what the
function keeps. The peaks leave it out if a line of the function has a peak as high.

for example:
  pytorch-memlab top train.memlab.json
  pytorch-memlab top -n 3 train.memlab.json
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from ..._common.process.standard_output import print_to_stdout
from ..common_options import add_rows
from ..parser import CommandParser


def add_arguments(parser: CommandParser) -> None:
    add_rows(parser.group("what to show"))
    parser.add("FILE", "the saved profile")


def prepare(options: argparse.Namespace, _process: ExitStack, /) -> Callable[[], None]:
    from ...profiles.ranking import lines_that_add, lines_with_peaks
    from ...render import top
    from ...saved import profile_file

    profile = profile_file.read(options.file)
    text = top.text(profile, lines_that_add(profile), lines_with_peaks(profile), options.rows)
    return partial(print_to_stdout, text)
