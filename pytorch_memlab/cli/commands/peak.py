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

_WITH_ROWS = (".txt", ".csv")


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
    top = None if options.all else options.top or 20
    files = _files(options, top)
    peaks = _peaks_in(options)
    if files:
        return partial(write_all, files, peaks, "peak")
    return partial(print_to_stdout, _text(peaks, options.by or "line", top))


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


def _files(options: argparse.Namespace, top: int | None) -> list[OutputFile[Sequence[PeakHolders]]]:
    if not options.outputs:
        return []
    from ...render import peak, peak_html

    by = options.by or "line"
    is_limited = options.top is not None
    title = f"What holds the GPU memory at its peak: {os.path.basename(options.file)}"
    files = [
        OutputFile[Sequence["PeakHolders"]](
            path,
            {
                ".html": partial(peak_html.render, title=title),
                ".speedscope.json": peak.speedscope,
                ".collapsed.txt": _collapsed,
                ".csv": partial(peak.csv_text, by=by),
                ".txt": partial(_text, by=by, top=top if is_limited else None),
            },
            is_private=options.private,
        )
        for path in options.outputs
    ]
    chooses = is_limited or options.by not in (None, "stack")
    for file, path in zip(files, options.outputs, strict=True):
        if chooses and file.ending not in _WITH_ROWS:
            raise UsageError(f"--by and --top are for .txt and .csv, not for {path}")
        if by == "stack" and file.ending == ".csv":
            raise UsageError(f"stacks are no rows of {path}: end it in .collapsed.txt")
    return files


def _text(peaks: Sequence[PeakHolders], by: str, top: int | None) -> str:
    from ...render import peak

    return "\n".join(
        holders.collapsed_stacks() if by == "stack" else peak.text(holders, top, by)
        for holders in peaks
    )


def _collapsed(peaks: Sequence[PeakHolders]) -> str:
    """The stacks of all GPUs; of several, each below its GPU."""
    if len(peaks) == 1:
        return peaks[0].collapsed_stacks()
    return "".join(
        f"{holders.peak.name};{line}"
        for holders in peaks
        for line in holders.collapsed_stacks().splitlines(keepends=True)
    )
