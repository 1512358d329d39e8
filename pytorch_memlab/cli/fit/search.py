"""``pytorch-memlab fit --vary``: the options and the search."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pytorch_memlab.cli.exit_codes import DOES_NOT_FIT, FAILED
from pytorch_memlab.cli.fit.found import Found
from pytorch_memlab.cli.notices import tell_in_terminal
from pytorch_memlab.cli.output import OutputFile
from pytorch_memlab.cli.parser import CommandParser

if TYPE_CHECKING:
    from pytorch_memlab.fitting.grid import GridReport
    from pytorch_memlab.fitting.target import ProgramTarget
    from pytorch_memlab.fitting.trial import Settings
    from pytorch_memlab.fitting.variable import Variable
    from pytorch_memlab.simulation.inspect import GPU


def add_vary_options(parser: CommandParser) -> None:
    """Declare the options."""
    parser.optional_values["--vary"] = bool  # the next word, also if it begins with a dash
    add = parser.add_argument_group("search").add_argument
    add(
        "--vary",
        action="append",
        metavar="NAME=VALUES",
        help='find the largest value that fits each GPU: of an option of the program ("--batch-size'
        '=1:512"), an environment variable (BATCH=1:512) or a value of a file (config.yaml:train.'
        "batch_size=1:512; YAML, JSON, TOML or Python). VALUES are a range, a range with a step"
        " (8:512:8) or a list (1,2,4). Repeatable: the first range is searched for each"
        " combination of the others, of whose ranges the doublings are taken",
    )
    add(
        "-o",
        "--output",
        metavar="FILE",
        help="with --vary, draw the curve to a file too: .svg or .png",
    )


def search_of(
    options: argparse.Namespace, gpus: Sequence[tuple[str, GPU]], target: ProgramTarget
) -> Callable[[Settings], Found]:
    """The search of the largest values, with its options checked."""
    from pytorch_memlab.fitting.grid import check_variables
    from pytorch_memlab.fitting.variable import read_variable

    variables = [read_variable(text, target.arguments) for text in options.vary]
    check_variables(variables)
    picture = None if options.output is None else _picture_file(options.output)
    return partial(_search, target, gpus, variables, picture)


def _picture_file(path: str) -> OutputFile[GridReport]:
    """The file of a curve."""
    from pytorch_memlab.render import curve_picture
    from pytorch_memlab.render.picture import check_installed

    file = OutputFile(path, {".svg": curve_picture.svg, ".png": curve_picture.png})
    check_installed(instead="")
    return file


def _search(
    target: ProgramTarget,
    gpus: Sequence[tuple[str, GPU]],
    variables: Sequence[Variable],
    picture: OutputFile[GridReport] | None,
    settings: Settings,
) -> Found:
    from pytorch_memlab.fitting.grid import GridSearch
    from pytorch_memlab.render import curve

    search = GridSearch(target, gpus, variables, settings)
    interrupted = ""
    try:
        search.run(_tell_progress)
    except KeyboardInterrupt:
        interrupted = "interrupted: values with >= fit, and larger ones may fit too"
    report = search.report()
    is_any_fitting = any(one.best is not None for one in report.answers)
    exit_code = FAILED if report.problem is not None else 0 if is_any_fitting else DOES_NOT_FIT
    found = Found(curve.text(report), exit_code, report.error, interrupted)
    if picture is None or report.problem is not None:
        return found
    return replace(found, draw=partial(picture.write, report, "picture"))


def _tell_progress(runs: int, latest: str) -> None:
    tell_in_terminal(f"run {runs}: {latest}")
