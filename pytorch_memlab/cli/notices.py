"""The messages of commands on standard error."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from .._common.process.ranks import path_of_rank, prints
from .._common.process.uncaught_errors import message_of
from .exit_codes import USAGE_ERROR

if TYPE_CHECKING:
    from .parser import CommandParser


def tell(text: str) -> None:
    """Print a line on standard error, in one process of a group."""
    if prints() and sys.stderr is not None:
        print(f"pytorch-memlab: {text}", file=sys.stderr, flush=True)


def tell_usage_error(command: str, error: Exception) -> int:
    """Print why a command cannot be carried out; its exit code."""
    print(f"pytorch-memlab {command}: error: {error}", file=sys.stderr)
    return USAGE_ERROR


def tell_in_terminal(text: str) -> None:
    """Print a line on standard error if that is a terminal."""
    if sys.stderr is not None and sys.stderr.isatty():
        tell(text)


def tell_simulated_gpu(options: argparse.Namespace) -> None:
    """Say which GPU is simulated, why, and how to change it; nothing where none is."""
    from ..devices import simulated_machine

    machine = simulated_machine()
    if machine is None:
        return
    count = f"{len(machine.gpus)} x " if len(machine.gpus) > 1 else ""
    how = ", shapes only" if options.dry_run else ""
    if options.gpu is not None:
        why = "chosen by --gpu"
    elif options.dry_run or options.strict:
        why = f"the default of {'--dry-run' if options.dry_run else '--strict'}"
    else:
        why = options.why_simulated
    change = "" if options.gpu is not None else "; choose another with --gpu NAME or --gpu SIZE"
    tell(f"simulating {count}{machine.gpus[0].model.name}{how} ({why}{change})")


def tell_options_after_program(
    parser: CommandParser, options: argparse.Namespace, source: str | None
) -> None:
    """Say which options of a command stand after the program, which does not seem to have them."""
    words = () if options.has_double_dash else options.arguments
    names = dict.fromkeys(word.partition("=")[0] for word in words)
    options_of_run = {*parser.shown_options()} - {"-h", "--help"}
    misplaced = [
        name for name in names if name in options_of_run and not _has_option(source or "", name)
    ]
    if not misplaced:
        return
    command, script = parser.prog, os.path.basename(options.script)
    stand = f"{' and '.join(misplaced)} {'stand' if len(misplaced) > 1 else 'stands'}"
    gets = "them" if len(misplaced) > 1 else "it"
    tell(
        f"{stand} after {script}, so {script} gets {gets}; an option of {command} goes before:"
        f" {command} {misplaced[0]} ... {script}"
    )


def _has_option(source: str, name: str) -> bool:
    """True if a program seems to read an option: by its name, or as a parameter or a field.

    >>> _has_option('add_argument("--gpu")', "--gpu"), _has_option("def main(dry_run): ...", "-o")
    (True, False)
    """
    word = re.escape(name.lstrip("-").replace("-", "_"))
    literal = rf"(?<![\w-]){re.escape(name)}(?![\w-])"
    return bool(re.search(rf"{literal}|\b{word}\s*[:=,)]", source))


def tell_next_steps(outputs: Sequence[str], script: str = "") -> None:
    """Say in a terminal what can be done next; after an error, whether values were assumed."""
    # ``script`` is the path of the program, if it is one.
    import torch

    from ..devices import simulated_machine

    error, machine = sys.exc_info()[1], simulated_machine()
    if isinstance(error, (SystemExit, type(None))):
        tell_in_terminal(f"next: {next_step(outputs)}")
    elif isinstance(error, (KeyboardInterrupt, torch.OutOfMemoryError)):
        pass  # a report explains the second one
    else:
        hint = hint_on(message_of(error), "run", script)
        if hint:
            error.add_note(f"pytorch-memlab: {hint}")  # below a traceback that may be long
        if machine is not None and machine.data_dependent_reads:
            tell_assumed_values("run without --dry-run")


def hint_on(message: str, command: str, script: str) -> str:
    """The hint on an error that a program often has; empty for any other."""
    # ``script`` is the path of the program, empty for a module.
    if "attempted relative import with no known parent package" in message and script:
        root, module = _module_of(script)
        where = "" if root == os.getcwd() else f", in the folder {root}"
        return (
            f"{os.path.basename(script)} is part of a package, which it imports from:"
            f" pytorch-memlab {command} -m {module}{where}"
        )
    if "'MPS' backend" in message or "support for mps devices" in message:
        return 'GPUs of Apple ("mps") are not simulated: let the program use the device "cuda"'
    return ""


def _module_of(script: str) -> tuple[str, str]:
    """The folder that a script's package is in, and the name of its module."""
    folder, file = os.path.split(os.path.realpath(script))
    names = [os.path.splitext(file)[0]]
    while not names[1:] or os.path.exists(os.path.join(folder, "__init__.py")):
        folder, name = os.path.split(folder)
        names.append(name)
    return folder, ".".join(reversed(names))


def tell_assumed_values(remedy: str) -> None:
    """Say that a program which failed without values had read some."""
    tell(
        "the program failed after it read values that a dry run only assumes (the notes say "
        f"where): if the error comes from them, {remedy}"
    )


def next_step(outputs: Sequence[str]) -> str:
    """A hint for a report in the terminal, or for the first of its files."""
    for output in outputs:
        path = path_of_rank(output)
        match PurePath(path).suffix.lower():
            case ".memlab":
                return f"pytorch-memlab show {output}"
            case ".json":
                return f"pytorch-memlab show {path}, or pytorch-memlab top {path}"
            case ".pickle" | ".pkl":
                return f"pytorch-memlab peak {path} shows what holds the memory at the peak"
            case ".html":
                return f"open {path} in a browser"
    return (
        "-o report.html writes a page, -o run.memlab.json keeps everything for pytorch-memlab show"
    )


def tell_unused_gpu(*, started_processes: bool) -> None:
    """Say that every number is zero because the program made no CUDA tensor; otherwise nothing."""
    from ..devices import find_devices

    if not any(_was_used(device.stats()) for device in find_devices()):
        others = (
            ". The processes that it started are not measured: start each with torchrun -m"
            " pytorch_memlab run SCRIPT, or call the function that they run"
        )
        tell(
            "the program created no CUDA tensor, so all numbers are 0: move the model and its"
            ' inputs to the device "cuda"' + others * started_processes
        )


def _was_used(stats: Mapping[str, Any]) -> bool:
    if not stats:
        return False
    reserved = stats["reserved_bytes"]["all"]
    return bool(reserved["allocated"] or reserved["peak"] or reserved["current"])
