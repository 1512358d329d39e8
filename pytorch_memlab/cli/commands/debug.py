"""Print what a report of a fault needs: versions, GPUs, driver, settings, patches, tracers.

The block has no paths, no arguments, and nothing of a program. A program prints the same of
itself with print(pytorch_memlab.debug_info()).

for example:
  pytorch-memlab debug
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import ExitStack

from ..._common.process.standard_output import print_to_stdout
from ..parser import CommandParser


def add_arguments(parser: CommandParser) -> None:
    """Declare no option: the command takes none."""
    parser.usage = "%(prog)s"


def prepare(_options: argparse.Namespace, _process: ExitStack, /) -> Callable[[], None]:
    from ...render.environment import debug_info

    return lambda: print_to_stdout(debug_info())
