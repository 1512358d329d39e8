"""Options of the report that ``run`` and ``show`` print: how much of it, and in which order."""

from __future__ import annotations

import argparse

from pytorch_memlab.cli.common_options import Add, number_from
from pytorch_memlab.errors import UsageError
from pytorch_memlab.profiles.overview import SORTS, Choice


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
