"""The grammar of ``%mlrun``: its options, and where they end in a line."""

from __future__ import annotations

import re
from argparse import Namespace
from typing import Any, Final

from ..errors import UsageError
from ..line_profiler.columns import DEFAULT_COLUMNS, checked_columns
from .option_words import WORD

_REPEATABLE: Final = {"action": "append", "default": []}
_SWITCH: Final = {"action": "store_true"}

OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "-f --function": _REPEATABLE
    | {
        "metavar": "FUNC",
        "help": "Profile this function, method or class, of the cell itself or known by then;"
        " repeatable. Without it: all functions that the cell defines, or its top level.",
    },
    "-c --column": _REPEATABLE
    | {
        "metavar": "NAME,...",
        "help": "Show this column with the default ones, as in version 0.3: peak, reserved,"
        " current, delta, hits, time, or any field of torch.cuda.memory_stats(); repeatable.",
    },
    "--columns": _REPEATABLE
    | {
        "metavar": "LIST",
        "help": "Show these columns instead of the default ones, as pytorch-memlab run -c does.",
    },
    "-D --no-default-columns --no_default_columns": _SWITCH
    | {"help": f"Leave out the default columns, {', '.join(DEFAULT_COLUMNS)}."},
    "-r --return-profiler": _SWITCH | {"help": "Return the LineProfiler, and show nothing."},
    "-g --gpu --device": {
        "metavar": "ID",
        "help": "Measure this device alone, such as 1 or cuda:1. Without it: every one in use.",
    },
    "--empty-cache": _SWITCH
    | {"help": "Give back what earlier cells left in the allocator's cache first, as 0.3 did."},
    "-q --quiet": _SWITCH | {"help": "Show nothing."},
    "-T --output --dump-profile": {
        "metavar": "FILE",
        "help": "Write the tables to a file: a page if its name ends in .html, data if in .json,"
        " else text.",
    },
    "--private": _SWITCH
    | {"help": "Leave folders and the message of an error out of the file of --output."},
    "--no-try": _SWITCH
    | {"help": "Name remedies after an out-of-memory error without trying them."},
    "--simulate": {
        "metavar": "NAME|SIZE",
        "help": "Simulate this GPU while the code runs: a name such as t4 or h100, or its memory,"
        " such as 24GiB. %%simulate does so for many cells.",
    },
    "--num-gpus --count": {
        "metavar": "N",
        "type": int,
        "default": 1,
        "help": "Number of GPUs to simulate.",
    },
    "-h --help": _SWITCH | {"help": "Show this, and run nothing."},
}
"""The names of each option, with what ``add_argument`` of ``argparse`` takes for it."""

_WITH_VALUE: Final = frozenset(
    name
    for names, settings in OPTIONS.items()
    if settings.get("action") != "store_true"
    for name in names.split()
)


def split_statement(line: str) -> tuple[str, str]:
    """Split a line behind ``%mlrun`` into its options and its statement.

    >>> split_statement("-f g -q  f('a  b')")
    ('-f g -q  ', "f('a  b')")
    """
    # The statement stays as it was written, with its quotes and minus signs.
    rest = line.lstrip()
    expects_value = False
    while rest and (expects_value or (rest.startswith("-") and _first_word(rest) != "-")):
        word = _first_word(rest)
        rest = rest[len(word) :].lstrip()
        if word == "--" and not expects_value:
            return line[: len(line) - len(rest)].rstrip().removesuffix("--"), rest
        expects_value = not expects_value and word in _WITH_VALUE
    return line[: len(line) - len(rest)], rest


def chosen_columns(options: Namespace) -> tuple[str, ...]:
    """The columns that ``-c``, ``--columns`` and ``-D`` ask for."""
    lists = options.columns + options.column
    asked = [name for names in lists for name in re.split(r"\s*,\s*", names)]
    if options.no_default_columns and not asked:
        raise UsageError("-D leaves out the default columns: name others with -c")
    defaults = () if options.no_default_columns or options.columns else DEFAULT_COLUMNS
    return checked_columns((*defaults, *asked))


def _first_word(text: str) -> str:
    return WORD.findall(text)[0]  # type: ignore[no-any-return]
