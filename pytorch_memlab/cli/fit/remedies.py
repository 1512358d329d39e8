"""``pytorch-memlab fit --try``: the options and the trials."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pytorch_memlab.cli.exit_codes import DOES_NOT_FIT, FAILED, INTERRUPTED
from pytorch_memlab.cli.fit.found import Found
from pytorch_memlab.cli.notices import tell_in_terminal
from pytorch_memlab.cli.parser import CommandParser
from pytorch_memlab.errors import UsageError
from pytorch_memlab.fitting.remedies.catalogue import NAMES, WITH_VALUE, chosen, nearest
from pytorch_memlab.simulation.inspect import DEFAULT_GPU

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


def trial_of_remedies(
    options: argparse.Namespace,
    gpus: Sequence[tuple[str, GPU]],
    settings: Settings,
    target: ProgramTarget,
) -> Callable[[Settings], Found]:
    """The trial of the remedies that were asked for, with its options checked."""
    from pytorch_memlab.simulation.inspect import find_gpu, read_size

    if len(gpus) > 1:
        raise UsageError("--try is for one GPU: name one with --gpu")
    name, gpu = gpus[0] if gpus else (DEFAULT_GPU, find_gpu(DEFAULT_GPU))
    if options.budget is not None:
        gpu = gpu.with_memory(read_size("--budget", options.budget))
        settings.taken(gpu)
    remedies = chosen([one for one in (options.remedies or "").split(",") if one.strip()])
    return partial(_try, target, name, gpu, remedies)


def _try(
    target: ProgramTarget, name: str, gpu: GPU, remedies: Sequence[Remedy], settings: Settings
) -> Found:
    from pytorch_memlab.fitting.remedies.tried import OneGPU, try_remedies
    from pytorch_memlab.render.remedies import text

    runs = 0

    def ended() -> None:
        nonlocal runs
        runs += 1
        tell_in_terminal(f"{runs} runs")

    try:
        found = try_remedies(OneGPU(target, name, gpu, settings), remedies, ended)
    except KeyboardInterrupt:
        return Found("", INTERRUPTED, "", f"interrupted after {runs} runs of the program")
    if found.unchanged.fits is None:
        return Found(text(found), FAILED, found.unchanged.trial.error)
    shown = [found.unchanged, *(one.verdict for one in found.tried)]
    fits = any(one is not None and one.fits for one in shown)
    return Found(text(found), 0 if fits else DOES_NOT_FIT)
