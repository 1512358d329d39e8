"""``pytorch-memlab fit --try``: the options and the trials."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pytorch_memlab._common.standard_output import print_to_stdout
from pytorch_memlab.cli.exit_codes import DOES_NOT_FIT, FAILED, INTERRUPTED
from pytorch_memlab.cli.fit.program_output import output_folder, tell_error, tell_output
from pytorch_memlab.cli.notices import tell, tell_in_terminal
from pytorch_memlab.cli.parser import CommandParser
from pytorch_memlab.cli.run.options import DEFAULT_GPU
from pytorch_memlab.errors import UsageError
from pytorch_memlab.fitting.remedies.catalogue import NAMES, WITH_VALUE, nearest

if TYPE_CHECKING:
    from pytorch_memlab.fitting.remedies.remedy import Remedy
    from pytorch_memlab.fitting.target import ProgramTarget
    from pytorch_memlab.fitting.trial import Settings
    from pytorch_memlab.simulation.inspect import GPU


def add_try_options(parser: CommandParser) -> None:
    """Declare the options."""
    names = [f"{name}[={WITH_VALUE[name]}]" if name in WITH_VALUE else name for name in NAMES]
    parser.optional_values["--try"] = _are_names
    add = parser.add_argument_group("remedies").add_argument
    add(
        "--try",
        dest="remedies",
        metavar="LIST",
        help="run the program with each of these remedies too, on one GPU, and show what it saves,"
        " what it changes and how it is written; without a list, all of them: "
        + ", ".join(names)
        + f". --gpu names the GPU (default: {DEFAULT_GPU})",
    )
    add(
        "--budget",
        metavar="SIZE",
        help="the memory that the program and the CUDA context may take, such as 20GiB"
        " (default: that of the GPU). If the program needs more, the fewest blocks are looked for"
        " whose activation checkpointing makes it fit; without --try, all remedies are tried",
    )


def _are_names(word: str) -> bool:
    """True if the word after ``--try`` is a list of remedies, not the script."""
    if word.startswith("-") or word.endswith(".py") or os.path.exists(word):
        return False
    return "," in word or "=" in word or bool(nearest(word))


def remedies_tried(
    options: argparse.Namespace,
    gpus: Sequence[tuple[str, GPU]],
    settings: Settings,
    target: ProgramTarget,
) -> Callable[[], int]:
    """The trial of the remedies that were asked for, with its options checked."""
    from pytorch_memlab.fitting.remedies.catalogue import chosen
    from pytorch_memlab.simulation.inspect import find_gpu, read_size

    if len(gpus) > 1:
        raise UsageError("--try is for one GPU: name one with --gpu")
    name, gpu = gpus[0] if gpus else (DEFAULT_GPU, find_gpu(DEFAULT_GPU))
    if options.budget is not None:
        gpu = gpu.with_memory(read_size("--budget", options.budget))
        settings.taken(gpu)
    remedies = chosen([one for one in (options.remedies or "").split(",") if one.strip()])
    return partial(_try, target, name, gpu, settings, remedies)


def _try(
    target: ProgramTarget, name: str, gpu: GPU, settings: Settings, remedies: Sequence[Remedy]
) -> int:
    from dataclasses import replace

    from pytorch_memlab.fitting.remedies.tried import OneGPU, try_remedies
    from pytorch_memlab.render.remedies import text

    folder = output_folder()
    runs = OneGPU(target, name, gpu, replace(settings, output=folder))
    progress = _Progress()
    try:
        found = try_remedies(target.name, runs, remedies, progress.ended)
    except KeyboardInterrupt:
        tell_output(folder)
        tell(f"interrupted after {progress.count} runs of the program")
        return INTERRUPTED
    print_to_stdout(text(found))
    tell_output(folder)
    if found.unchanged.fits is None:
        tell_error(found.unchanged.trial.error)
        return FAILED
    shown = [found.unchanged, *(one.verdict for one in found.tried)]
    return 0 if any(one is not None and one.fits for one in shown) else DOES_NOT_FIT


class _Progress:
    """Says in a terminal how many runs have ended."""

    def __init__(self) -> None:
        self.count = 0

    def ended(self) -> None:
        """One more has."""
        self.count += 1
        tell_in_terminal(f"{self.count} runs")
