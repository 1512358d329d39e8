"""The messages of commands on standard error."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from .._common.ranks import path_of_rank, prints
from .exit_codes import USAGE_ERROR


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
        why = "this machine has no CUDA GPU"
    change = "" if options.gpu is not None else "; choose another with --gpu NAME or --gpu SIZE"
    tell(f"simulating {count}{machine.gpus[0].model.name}{how} ({why}{change})")


def tell_next_steps(outputs: Sequence[str]) -> None:
    """Say in a terminal what can be done next; after an error, whether values were assumed."""
    import torch

    from ..devices import simulated_machine

    error, machine = sys.exc_info()[1], simulated_machine()
    if isinstance(error, (SystemExit, type(None))):
        tell_in_terminal(f"next: {next_step(outputs)}")
    elif isinstance(error, (KeyboardInterrupt, torch.OutOfMemoryError)):
        pass  # a report explains the second one
    elif machine is not None and machine.data_dependent_reads:
        tell_assumed_values("run without --dry-run")


def tell_assumed_values(remedy: str) -> None:
    """Say that a program which failed without values had read some."""
    tell(
        "the program failed after it read values that a dry run only assumes (the notes say "
        f"where): if the error comes from them, {remedy}"
    )


def next_step(outputs: Sequence[str]) -> str:
    """A hint for a report in the terminal, or for the first of its files."""
    for given in outputs:
        path = path_of_rank(given)
        match PurePath(path).suffix.lower():
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
