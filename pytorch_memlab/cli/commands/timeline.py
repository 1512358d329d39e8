"""Draw the GPU memory of a memory snapshot over time.

The file is one that run -o FILE.pickle or torch.cuda.memory._dump_snapshot() wrote, on a GPU or
a simulated one. Nothing in it is executed. The picture shows the bytes in use, stacked by
category, or by line of the program where the file has no categories; the reserved bytes; the
peak with its line; the steps of optimizers; and where the GPU ran out of memory.

for example:
  pytorch-memlab timeline -o memory.html snapshot.pickle
  pytorch-memlab timeline -o memory.svg --gpu rtx4090 snapshot.pickle
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from ...render.output_format import TimelineResults
from ..common_options import (
    GPU_SPEC,
    add_device,
    add_history_file,
    add_output_files,
    add_private,
    recorded_gpus,
)
from ..output import OutputFile, write_all
from ..parser import CommandParser


def add_arguments(parser: CommandParser) -> None:
    add = parser.group("what to show")
    add(
        "--by",
        "stack the bytes by category or by line (default: category, if the file has any)",
        choices=("category", "line"),
    )
    add(
        f"--gpu {GPU_SPEC}",
        "draw the capacity of this GPU: a name, its memory (24GiB) or a TOML file, as run"
        " takes them",
    )
    add_device(add, "show")
    add = parser.group("output")
    add_output_files(
        add,
        "write a page to explore (.html), or a picture (.svg, .png; these need matplotlib);"
        " repeatable",
        required=True,
    )
    add_private(add, "the files")
    add_history_file(parser.add)


def prepare(options: argparse.Namespace, _process: ExitStack, /) -> Callable[[], int]:
    from ...history.timeline import timeline_of
    from ...simulation.inspect import find_gpu

    is_private = options.private
    files = [OutputFile(path, TimelineResults, is_private=is_private) for path in options.outputs]
    capacity = None if options.gpu is None else find_gpu(options.gpu).total_memory
    timelines = [
        replace(timeline_of(history, device, capacity, options.by), run=run)
        for run, history, device in recorded_gpus(options)
    ]
    title = f"GPU memory over time: {os.path.basename(options.file)}"
    return partial(write_all, files, TimelineResults(timelines, title), "timeline")
