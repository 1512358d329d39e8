"""``pytorch-memlab fit``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING

from pytorch_memlab.cli.common_options import (
    add_memory_overhead,
    add_program,
    comma_list,
    number_from,
)
from pytorch_memlab.cli.exit_codes import DOES_NOT_FIT, FAILED
from pytorch_memlab.cli.fit.found import Found, show
from pytorch_memlab.cli.fit.remedies import add_try_options, trial_of_remedies
from pytorch_memlab.cli.fit.search import add_vary_options, search_of
from pytorch_memlab.cli.notices import tell_in_terminal
from pytorch_memlab.cli.parser import CommandParser
from pytorch_memlab.errors import UsageError

if TYPE_CHECKING:
    from pytorch_memlab.fitting.target import ProgramTarget
    from pytorch_memlab.fitting.trial import Settings
    from pytorch_memlab.fitting.verdict import Verdict
    from pytorch_memlab.simulation.inspect import GPU


class FitCommand:
    """Show on which GPUs a program fits, without any of them.

    The program runs unmodified and without values, as run --dry-run does it, and ends once the
    peak of its training steps repeats. GPUs on which the same happens share a run; its allocations
    are replayed with the memory of each. What the program prints goes to files, which are named
    below the table.

    A ? after a peak says that not all memory is counted, or that the program read values that
    decide shapes; a ~ that an estimate is included. The notes at the end say what.

    for example:
      pytorch-memlab fit train.py --batch-size 8
      pytorch-memlab fit --gpu rtx4090,a100,h100 train.py -- --batch-size 8
      pytorch-memlab fit --gpu 24GiB --steps 5 -m package.train
      pytorch-memlab fit --try --gpu rtx4090 train.py
      pytorch-memlab fit --vary "--batch-size=1:512" -o curve.svg train.py

    exit codes:
      0  the program fits on one of the GPUs at least, or with one of the remedies
      1  the program failed
      2  the command line cannot be carried out, and nothing ran
      3  the program fits on none of the GPUs
    """

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.usage = "%(prog)s [options] (SCRIPT | -m MODULE) [--] [ARGS ...]"
        parser.hint_on_unknown = "; options of the script go after it: fit SCRIPT ARGS"
        add_program(parser.add_argument_group("what to run").add_argument)
        add = parser.add_argument_group("how long").add_argument
        add(
            "--steps",
            type=number_from(1, "optimizer steps"),
            metavar="N",
            help="end the program after N optimizer steps (default: when the peak of a step"
            " repeats; a program without an optimizer runs to its end)",
        )
        add = parser.add_argument_group("GPUs").add_argument
        add(
            "--gpu",
            action="extend",
            type=comma_list,
            metavar="LIST",
            help="try these GPUs: names (t4, rtx4090, a100, h100), sizes (24GiB), or TOML files"
            " with name, memory, compute_capability and multiprocessors. Separated by commas,"
            " repeatable (default: all GPUs that have a name)",
        )
        add(
            "--num-gpus",
            type=int,
            default=1,
            metavar="N",
            help="number of GPUs that the program has, all alike (default: 1)",
        )
        add_memory_overhead(add, "GPU")
        add_try_options(parser)
        add_vary_options(parser)

    def prepare(self, options: argparse.Namespace, _process: ExitStack, /) -> Callable[[], int]:
        """Find the program and the GPUs."""
        gpus = find_gpus(options.gpu)
        settings = _settings(options)
        for _, gpu in gpus:
            settings.taken(gpu)
        target = _target(options)
        target.check()
        is_tried = options.remedies is not None or options.budget is not None
        if options.vary:
            if is_tried:
                raise UsageError("--vary and --try are two questions: ask one after the other")
            return partial(show, search_of(options, gpus, target), settings)
        if options.output is not None:
            raise UsageError("--output draws the curve of --vary: give that too")
        if is_tried:
            one_gpu = gpus if options.gpu else ()
            return partial(show, trial_of_remedies(options, one_gpu, settings, target), settings)
        return partial(show, partial(_fit, target, gpus), settings)


def find_gpus(names: Sequence[str] | None) -> list[tuple[str, GPU]]:
    """The GPUs of ``--gpu``, each once; all presets without it."""
    from pytorch_memlab.simulation.inspect import PRESETS, find_gpu

    if names is None:
        return list(PRESETS.items())
    stripped = dict.fromkeys(name.strip() for name in names)
    return [(name, find_gpu(name)) for name in stripped]


def _settings(options: argparse.Namespace) -> Settings:
    from pytorch_memlab.fitting.trial import Settings
    from pytorch_memlab.simulation.inspect import read_size

    if not 1 <= options.num_gpus <= 128:
        raise UsageError(f"--num-gpus is a number from 1 to 128, not {options.num_gpus}")
    context = options.cuda_context
    return Settings(
        steps=options.steps,
        num_gpus=options.num_gpus,
        context=None if context is None else read_size("--cuda-context", context),
        others=read_size("--reserve", options.reserve or 0),
    )


def _target(options: argparse.Namespace) -> ProgramTarget:
    from pytorch_memlab.fitting.target import ProgramTarget

    if options.script == "-":
        raise UsageError("fit runs a program several times: give the file of a script, not -")
    arguments = options.arguments
    if arguments[:1] == ["--"]:
        arguments = arguments[1:]
    return ProgramTarget(options.script, tuple(arguments), options.is_module)


def _fit(target: ProgramTarget, gpus: Sequence[tuple[str, GPU]], settings: Settings) -> Found:
    from pytorch_memlab.fitting.comparison import compare_gpus, fit_report
    from pytorch_memlab.render import fit

    known: list[tuple[int, Verdict]] = []
    interrupted = ""
    try:
        with closing(compare_gpus(target, gpus, settings)) as found:
            for one in found:
                known.append(one)
                if len(known) < len(gpus):  # the table says so of the last one
                    tell_in_terminal(f"{len(known)} of {len(gpus)} GPUs")
    except KeyboardInterrupt:
        interrupted = f"interrupted: {len(known)} of {len(gpus)} GPUs are known"
    report = fit_report(target, gpus, known, settings)
    is_known = any(one.fits is False for one in report.verdicts)
    exit_code = 0 if report.fitting else DOES_NOT_FIT if is_known else FAILED
    return Found(fit.text(report), exit_code, report.error, interrupted)
