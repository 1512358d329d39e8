"""Show what holds the GPU memory at the peak of a run.

The file is a saved profile, which run -o FILE.json writes, or a memory snapshot, which run -o
FILE.pickle and torch.cuda.memory._dump_snapshot() write, on a GPU or a simulated one.
Nothing in it is executed. Each row is a line of the program, with the bytes that it allocated
and that are in use at the moment of the highest active bytes. The rows add up to that peak.

for example:
  pytorch-memlab peak snapshot.pickle
  pytorch-memlab peak --by function --top 5 snapshot.pickle
  pytorch-memlab peak -o peak.html snapshot.pickle
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from ..._common.process.standard_output import print_to_stdout
from ...errors import UsageError
from ...render.output_format import PeakResults
from ...render.outputs import output_formats
from ...render.outputs.peak_files import PeakText
from ..common_options import (
    add_device,
    add_output_files,
    add_private,
    number_from,
    recorded_gpus,
)
from ..output import OutputFile, write_all
from ..parser import CommandParser

if TYPE_CHECKING:
    from ...history.holders import PeakHolders


def add_arguments(parser: CommandParser) -> None:
    add = parser.group("what to show")
    add(
        "--by",
        "add up by line of the program (the default), by function, by module, by category"
        " of memory, or by stack: collapsed stacks that flame graph viewers read",
        choices=("line", "function", "module", "category", "stack"),
    )
    add("--top N", "show the N largest rows (default: 20)", type=number_from(1, "rows"))
    add("--all", "show all rows", action="store_true")
    add_device(add, "show")
    add = parser.group("output")
    add_output_files(
        add,
        "write a file instead: a page with tables, the tree of modules and a flame graph"
        " (.html), the rows (.txt, .csv), or stacks for other viewers (.speedscope.json,"
        " .collapsed.txt); repeatable",
    )
    add_private(add, "the files")
    parser.add("FILE", "the snapshot or the saved profile")


def prepare(options: argparse.Namespace, _process: ExitStack, /) -> Callable[[], int | None]:
    files = _files(options)
    by, top = options.by or "line", options.top
    if not files and not options.all:
        top = top or 20
    results = PeakResults(_peaks_in(options), os.path.basename(options.file), by, top)
    if files:
        return partial(write_all, files, results, "peak")
    return partial(print_to_stdout, PeakText(".txt").render(results))


def _peaks_in(options: argparse.Namespace) -> Sequence[PeakHolders]:
    """The peaks, which stand in a profile, and follow from a snapshot."""
    from ...saved import profile_file

    profile = profile_file.read_if_saved(options.file)
    if profile is not None:
        peaks = profile.peaks.values()
        chosen = [held for held in peaks if options.device in (None, held.peak.device)]
        if not chosen:
            raise UsageError(f"{options.file} {profile.why_no_peak(options.device)}")
        return chosen
    from ...history.holders import peak_holders

    return [peak_holders(history, device) for _, history, device in recorded_gpus(options)]


def _files(options: argparse.Namespace) -> list[OutputFile[PeakResults]]:
    outputs: Sequence[str] = options.outputs or ()
    files = [OutputFile(path, PeakResults, is_private=options.private) for path in outputs]
    chooses = options.top is not None or options.by not in (None, "stack")
    for file, path in zip(files, outputs, strict=True):
        if chooses and not file.format.has_rows:
            formats = output_formats(PeakResults).values()
            of_rows = " and ".join(chosen.ending for chosen in formats if chosen.has_rows)
            raise UsageError(f"--by and --top are for {of_rows}, not for {path}")
        if options.by == "stack" and file.format.ending == ".csv":
            raise UsageError(f"stacks are no rows of {path}: end it in .collapsed.txt")
    return files
