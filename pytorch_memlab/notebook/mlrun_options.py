"""The grammar of ``%mlrun``: its options, and where they end in a line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..errors import UsageError
from ..line_profiler.columns import DEFAULT_COLUMNS, checked_columns

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

_WORD = re.compile(r"""(?:[^\s"']|"[^"]*"|'[^']*'|["'])+""")
_QUOTED = re.compile(r"""(["'])(.*?)\1""")


class Option(NamedTuple):
    """An option, as ``add_argument`` of ``argparse`` takes it."""

    names: tuple[str, ...]
    settings: dict[str, Any]


def _option(*names: str, **settings: Any) -> Option:
    return Option(names, settings)


OPTIONS: Final = (
    _option(
        "-f",
        "--function",
        metavar="FUNC",
        action="append",
        default=[],
        help="Profile this function, method or class, of the cell itself or known by then;"
        " repeatable. Without it: all functions that the cell defines, or its top level.",
    ),
    _option(
        "-c",
        "--column",
        metavar="NAME,...",
        action="append",
        default=[],
        help="Show this column with the default ones, as in version 0.3: peak, reserved, current,"
        " delta, hits, time, or any field of torch.cuda.memory_stats(); repeatable.",
    ),
    _option(
        "--columns",
        metavar="LIST",
        action="append",
        default=[],
        help="Show these columns instead of the default ones, as pytorch-memlab run -c does.",
    ),
    _option(
        "-D",
        "--no-default-columns",
        "--no_default_columns",
        action="store_true",
        help=f"Leave out the default columns, {', '.join(DEFAULT_COLUMNS)}.",
    ),
    _option(
        "-r",
        "--return-profiler",
        action="store_true",
        help="Return the LineProfiler, and show nothing.",
    ),
    _option(
        "-g",
        "--gpu",
        "--device",
        metavar="ID",
        help="Measure this device alone, such as 1 or cuda:1. Without it: every one in use.",
    ),
    _option("-q", "--quiet", action="store_true", help="Show nothing."),
    _option(
        "-T",
        "--output",
        "--dump-profile",
        dest="output",
        metavar="FILE",
        help="Write the tables to a file: a page if its name ends in .html, data if in .json,"
        " else text.",
    ),
    _option(
        "--simulate",
        metavar="NAME|SIZE",
        help="Simulate this GPU while the code runs: a name such as t4 or h100, or its memory,"
        " such as 24GiB. %%simulate does so for many cells.",
    ),
    _option(
        "--num-gpus",
        "--count",
        type=int,
        default=1,
        metavar="N",
        help="Number of GPUs to simulate.",
    ),
    _option("-h", "--help", action="store_true", help="Show this, and run nothing."),
)

_WITH_VALUE: Final = frozenset(
    name
    for option in OPTIONS
    if option.settings.get("action") != "store_true"
    for name in option.names
)


def split_statement(line: str) -> tuple[str, str]:
    """Split a line behind ``%mlrun`` where its options end and its statement begins.

    Returns:
        the options, and the statement as it was written, quotes and minus signs included.

    >>> split_statement("-f g -q  f('a  b')")
    ('-f g -q  ', "f('a  b')")
    """
    rest = line.lstrip()
    expects_value = False
    while rest and (expects_value or (rest.startswith("-") and _first_word(rest) != "-")):
        word = _first_word(rest)
        rest = rest[len(word) :].lstrip()
        if word == "--" and not expects_value:
            return line[: len(line) - len(rest)].rstrip().removesuffix("--"), rest
        expects_value = not expects_value and word in _WITH_VALUE
    return line[: len(line) - len(rest)], rest


def words_of(options: str, expand: Callable[[str], str] = str) -> list[str]:
    """Options as a list of words, each expanded, then quotes taken off.

    >>> words_of("-q -T 'my table.html' --gpu=h100")
    ['-q', '-T', 'my table.html', '--gpu=h100']
    """
    return [_QUOTED.sub(r"\2", expand(word)) for word in _WORD.findall(options)]


def chosen_columns(options: Namespace) -> tuple[str, ...]:
    """The columns that ``-c``, ``--columns`` and ``-D`` ask for."""
    given = options.columns + options.column
    asked = [name for names in given for name in re.split(r"\s*,\s*", names)]
    if options.no_default_columns and not asked:
        raise UsageError("-D leaves out the default columns: name others with -c")
    defaults = () if options.no_default_columns or options.columns else DEFAULT_COLUMNS
    return checked_columns((*defaults, *asked))


def _first_word(text: str) -> str:
    return _WORD.findall(text)[0]  # type: ignore[no-any-return]
