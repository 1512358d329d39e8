"""The options of ``run`` as words, for the command lines of ranks."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from ..parser import CommandParser


def words_of(options: argparse.Namespace, parser: CommandParser) -> Iterator[str]:
    """The options as they would be on a command line."""
    for action in parser.shown_actions():
        value = getattr(options, action.dest, None)
        if value is None or not action.option_strings or action.dest == "is_module":
            continue
        name = action.option_strings[-1]
        if action.nargs == 0:
            if value == action.const:
                yield name
        elif isinstance(value, list):
            joined = [",".join(value)] if action.dest != "outputs" else value
            yield from (f"{name}={value}" for value in joined)
        else:
            yield f"{name}={value}"
