"""Options that several commands take, each declared once."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from pytorch_memlab._common.quoted import shortened
from pytorch_memlab.cli.parser import CommandParser, gpu_index
from pytorch_memlab.errors import UsageError
from pytorch_memlab.profiles.overview import SORTS, Choice

Add = Callable[..., Any]
"""The ``add_argument`` of a group of options."""


def add_program(add: Add, note: str = "") -> None:
    """Declare ``-m``, and the program with its arguments; ``note`` is more help on the script."""
    add(
        "-m",
        "--module",
        dest="is_module",
        action="store_true",
        help="run a module, as python -m does",
    )
    add("script", metavar="SCRIPT", help=f"the file, or with -m the module, to run{note}")
    # Not required: Python before 3.13 names it among the missing arguments otherwise.
    add(
        "arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="arguments of the program"
    ).required = False


def add_functions_and_columns(add: Add, functions: str, columns: str) -> None:
    """Declare ``-f`` and ``-c``, which have these texts."""
    for short, long, name, text in (
        ("-f", "--function", "functions", functions),
        ("-c", "--columns", "columns", columns),
    ):
        add(short, long, dest=name, action="extend", type=comma_list, metavar="LIST", help=text)


def add_device(add: Add, verb: str) -> None:
    """Declare ``--device`` of a command that reads a file; ``verb`` is what it does with a GPU."""
    add(
        "--device",
        type=gpu_index,
        metavar="DEVICE",
        help=f"{verb} this GPU (default: all that were used)",
    )


def add_rows(add: Add) -> None:
    """Declare ``--rows`` of a command that prints lists."""
    add(
        "-n",
        "--rows",
        type=number_from(1),
        default=10,
        metavar="N",
        help="show the N first rows of each list (default: 10)",
    )


def add_history_file(parser: CommandParser) -> None:
    """Declare the file of a command that reads a history."""
    parser.add_argument("file", metavar="FILE", help="the snapshot, or a profile of run --history")


def add_output_files(add: Add, text: str, *, required: bool = False) -> None:
    """Declare ``-o``, repeatable."""
    add(
        "-o",
        "--output",
        dest="outputs",
        action="append",
        required=required,
        metavar="FILE",
        help=f"{text}; repeatable",
    )


def add_memory_overhead(add: Add, gpu: str) -> None:
    """Declare the memory of each GPU that is not the program's."""
    add(
        "--cuda-context",
        metavar="SIZE",
        help=f"memory that the CUDA context takes of each {gpu}, such as 450MiB (default: a"
        " built-in estimate for a GPU with a name, 0 for a size)",
    )
    add(
        "--reserve",
        metavar="SIZE",
        help=f"memory that other processes use on each {gpu} (default: 0)",
    )


def add_report_options(add: Add) -> None:
    """Declare the options."""
    add(
        "--top",
        type=number_from(1),
        metavar="N",
        help="report the N functions that add most memory, and N lines of each (default: 10)",
    )
    add(
        "--sort",
        choices=SORTS,
        metavar="KEY",
        help=f"order of the functions: {', '.join(SORTS)} (default: what they add, which is the"
        " memory that they keep and the temporary memory, without the functions that they call)",
    )
    add(
        "--all",
        dest="everything",
        action="store_true",
        help="report every function and line in the order of the source, also those that added"
        " nothing",
    )


def report_choice(options: argparse.Namespace) -> Choice | None:
    """The part of the report to show; None if columns alone were asked for: tables show them."""
    if options.top is not None and options.everything:
        raise UsageError("--all shows everything, --top a part: give one of them")
    choice = Choice(options.top, options.sort, options.everything)
    return None if options.columns and choice == Choice() else choice


def comma_list(text: str) -> list[str]:
    """Words between commas."""
    return text.split(",")


def number_from(least: int, noun: str = "") -> Callable[[str], int]:
    """The type of an option that takes a whole number; ``noun`` is what it counts, if not clear."""
    kind = f"a number of {noun}" if noun else "a number"

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise argparse.ArgumentTypeError(f"is {kind} from {least} on, not {shortened(text)}")
        return number

    return read
