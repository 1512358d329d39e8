"""Replay a memory snapshot with other allocator settings or on other GPUs.

The file is one that torch.cuda.memory._dump_snapshot() or pytorch-memlab run -o wrote. Nothing
in it is executed. Its requests and frees go through a simulated allocator: first as they were
recorded, to check that all addresses come out the same, then once for each --gpu, with the
settings of all --set options. Each row of the table is one replay; below it stands where
memory runs out. Kernels and the program itself do not run.

for example:
  pytorch-memlab replay snapshot.pickle --set expandable_segments:True
  pytorch-memlab replay snapshot.pickle --gpu rtx4090 --gpu 16GiB
  pytorch-memlab replay snapshot.pickle --set max_split_size_mb:128 --gpu a100
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from ..._common.process.standard_output import print_to_stdout
from ...errors import UsageError
from ..common_options import GPU_SPEC, add_device, add_history_file, recorded_gpus
from ..parser import CommandParser


def add_arguments(parser: CommandParser) -> None:
    add = parser.group("what to change")
    add(
        "--set NAME:VALUE",
        "change a setting of PYTORCH_CUDA_ALLOC_CONF, such as max_split_size_mb:128; the"
        " others stay as recorded. Repeatable: all of them apply together. Without --gpu, the"
        " replay has the memory that the recording had when it ran out, or no limit",
        dest="settings",
        action="append",
    )
    add(
        f"--gpu {GPU_SPEC}",
        "replay on this GPU, less an estimate for its CUDA context: a name (t4, rtx4090,"
        " a100, h100), its memory (24GiB), or a TOML file with its name, memory,"
        " compute_capability and multiprocessors. Repeatable: each is a row",
        dest="gpus",
        action="append",
    )
    add_device(parser.group("what to show"), "replay")
    add_history_file(parser.add)


def prepare(options: argparse.Namespace, _process: ExitStack, /) -> Callable[[], None]:
    from ...history.replay import what_if
    from ...render import replay
    from ...simulation.inspect import MemoryOverhead, find_gpu, read_alloc_conf

    settings = _joined(options.settings or ())
    read_alloc_conf(settings)
    gpus = [(spec, find_gpu(spec)) for spec in dict.fromkeys(options.gpus or ())]
    for _, gpu in gpus:
        MemoryOverhead.of(gpu, None, 0)
    chosen = recorded_gpus(options)
    if not any(history.of_device(device).events for _, history, device in chosen):
        raise UsageError(
            f"{options.file} has no events to replay: record them with "
            "torch.cuda.memory._record_memory_history(enabled='all')"
        )
    answers = [
        replace(what_if(history, device, settings, gpus), run=run)
        for run, history, device in chosen
    ]
    return partial(print_to_stdout, "\n".join(map(replay.text, answers)))


def _joined(settings: Sequence[str]) -> str:
    names = [item.partition(":")[0].strip() for item in settings]
    for name in names:
        if name and names.count(name) > 1:
            raise UsageError(
                f"--set {name} is given twice: all --set options apply together, so give it once,"
                " and run the command again for another value"
            )
    return ",".join(item.strip() for item in settings)
