"""``pytorch-memlab fit``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING

from pytorch_memlab._common.standard_output import print_to_stdout
from pytorch_memlab.cli.exit_codes import DOES_NOT_FIT, FAILED, INTERRUPTED
from pytorch_memlab.cli.fit.options import add_fit_options
from pytorch_memlab.cli.fit.program_output import output_folder, tell_error, tell_output
from pytorch_memlab.cli.fit.remedies import add_try_options, remedies_tried
from pytorch_memlab.cli.fit.search import add_vary_options, searched
from pytorch_memlab.cli.notices import tell, tell_in_terminal
from pytorch_memlab.cli.parser import CommandParser
from pytorch_memlab.errors import UsageError

if TYPE_CHECKING:
    from pytorch_memlab.fitting.target import ProgramTarget
    from pytorch_memlab.fitting.trial import Settings
    from pytorch_memlab.fitting.verdict import FitReport, Verdict
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
        add_fit_options(parser)
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
            return searched(options, gpus, settings, target)
        if options.output is not None:
            raise UsageError("--output draws the curve of --vary: give that too")
        if is_tried:
            return remedies_tried(options, gpus if options.gpu else (), settings, target)
        return partial(_fit, target, gpus, settings)


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


def _fit(target: ProgramTarget, gpus: Sequence[tuple[str, GPU]], settings: Settings) -> int:
    from dataclasses import replace

    from pytorch_memlab.fitting.comparison import compare_gpus, fit_report
    from pytorch_memlab.render import fit

    folder = output_folder()
    known: list[tuple[int, Verdict]] = []
    is_interrupted = False
    try:
        with closing(compare_gpus(target, gpus, replace(settings, output=folder))) as found:
            for one in found:
                known.append(one)
                _tell_progress(len(known), len(gpus))
    except KeyboardInterrupt:
        is_interrupted = True
    report = fit_report(target, gpus, known, settings)
    print_to_stdout(fit.text(report))
    tell_output(folder)
    tell_error(report.error)
    if is_interrupted:
        tell(f"interrupted: {len(known)} of {len(gpus)} GPUs are known")
        return INTERRUPTED
    return _exit_code(report)


def _exit_code(report: FitReport) -> int:
    if report.fitting:
        return 0
    return DOES_NOT_FIT if any(one.fits is False for one in report.verdicts) else FAILED


def _tell_progress(known: int, total: int) -> None:
    """Say in a terminal that one more GPU is known; the table says so of the last one."""
    if known < total:
        tell_in_terminal(f"{known} of {total} GPUs")
