"""Options that several commands take, each declared once."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from pytorch_memlab._common.quoted import shortened
from pytorch_memlab.cli.parser import gpu_index

Add = Callable[..., Any]
"""The ``add_argument`` of a group of options."""


def add_program(add: Add, note: str = "") -> None:
    """Declare ``-m``, and the program with its arguments.

    Args:
        add: the ``add_argument`` of a group.
        note: more help on the script.
    """
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


def add_functions(add: Add, text: str) -> None:
    """Declare ``-f``.

    Args:
        add: the ``add_argument`` of a group.
        text: the help.
    """
    _add_list(add, "-f", "--function", "functions", text)


def add_columns(add: Add, text: str) -> None:
    """Declare ``-c``.

    Args:
        add: the ``add_argument`` of a group.
        text: the help.
    """
    _add_list(add, "-c", "--columns", "columns", text)


def add_device(add: Add, verb: str) -> None:
    """Declare ``--device`` of a command that reads a file.

    Args:
        add: the ``add_argument`` of a group.
        verb: what the command does with a GPU.
    """
    add(
        "--device",
        type=gpu_index,
        metavar="DEVICE",
        help=f"{verb} this GPU (default: all that were used)",
    )


def comma_list(text: str) -> list[str]:
    """Words between commas.

    Args:
        text: as it was typed.
    """
    return text.split(",")


def number_from(least: int, noun: str = "") -> Callable[[str], int]:
    """The type of an option that takes a whole number.

    Args:
        least: the smallest one.
        noun: what it counts; empty where the option's name says it.

    Returns:
        What reads the number; ``ArgumentTypeError`` for anything else.
    """
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


def _add_list(add: Add, short: str, long: str, name: str, text: str) -> None:
    add(short, long, dest=name, action="extend", type=comma_list, metavar="LIST", help=text)
