"""The options of ``pytorch-memlab run``, in the groups that its help shows."""

from __future__ import annotations

import argparse

from pytorch_memlab.cli.common_options import (
    Add,
    add_functions_and_columns,
    add_memory_overhead,
    add_program,
    add_report_options,
    number_from,
)
from pytorch_memlab.cli.parser import CommandParser
from pytorch_memlab.simulation.inspect import DEFAULT_GPU


def add_run_options(parser: CommandParser) -> None:
    """Declare all options of ``run``."""
    parser.usage = "%(prog)s [options] (SCRIPT | -m MODULE) [ARGS ...]"
    parser.hint_on_unknown = "; options of the script go after it: run SCRIPT ARGS"
    add_program(parser.add_argument_group("what to run").add_argument, "; - for standard input")
    _add_profiled(parser.add_argument_group("what to profile").add_argument)
    _add_output(parser.add_argument_group("output").add_argument)
    _add_simulation(parser.add_argument_group("simulation").add_argument)


def _add_profiled(add: Add) -> None:
    add_functions_and_columns(
        add,
        "profile only these: a function, class or method of the script (Net.forward), a"
        " method of any class (forward), a pattern ('Block.*'), or one of another module:"
        " package.module:Net.forward imports the module before the script runs,"
        " 'package.*:*.forward' waits until the script imports those that match. Separated by"
        " commas, repeatable",
        "show tables of these columns, with every line, instead of the report; with --top,"
        " --sort or --all the report has them. They are peak, kept or delta (what a line kept),"
        " temporary (how far above the larger of its start and its end a line went), reserved,"
        " current, hits, time, and any field of torch.cuda.memory_stats(), such as"
        " allocated_bytes.all.peak; separated by commas, repeatable"
        " (default: peak,kept,temporary)",
    )
    add(
        "--device",
        metavar="DEVICE",
        help="measure this device only, such as cuda:1 (default: every device in use)",
    )
    add(
        "--warmup",
        type=number_from(0, "optimizer steps"),
        metavar="N",
        help="leave the first N optimizer steps out of the numbers (default: 0)",
    )
    add(
        "--steps",
        type=number_from(1, "optimizer steps"),
        metavar="N",
        help="end the program after N optimizer steps (not counting the warm-up), with exit code"
        " 0, as if it had finished (default: let it finish)",
    )


def _add_output(add: Add) -> None:
    add_report_options(add)
    add(
        "-o",
        "--output",
        dest="outputs",
        action="append",
        metavar="FILE",
        help="write a file: the report instead of printing it (.txt), a page to explore in a"
        " browser, with the code and the memory over time (.html), everything that was recorded,"
        " for pytorch-memlab show, top, diff and merge (.json), the memory history of the run in"
        " PyTorch's own format, for pytorch-memlab peak, timeline and pytorch.org/memory_viz"
        " (.pickle), or a picture of the memory over time (.svg or .png; needs matplotlib);"
        " repeatable. {rank} and {pid} are filled in; each process that torchrun"
        " starts writes its own file, such as out.rank0.html",
    )
    add(
        "--report",
        action="store_true",
        help="show what holds the memory at the end and at the peak, by category: parameters,"
        " gradients, optimizer state, buffers, activations",
    )
    add(
        "--leaks",
        action="store_true",
        help="show the variables whose memory grows with every step of the optimizer, with the"
        " line that allocates it; looking takes time after each step",
    )
    add(
        "--history",
        action="store_true",
        help="keep every allocation and free in the .json file: some 10 bytes for each",
    )
    add("--force", action="store_true", help="overwrite the .json or .pickle file of an older run")
    add(
        "--max-peak",
        metavar="SIZE",
        help="exit with 3 if PyTorch reserves more than this on a GPU, such as 20GiB. The CUDA"
        " context comes on top of it",
    )
    add(
        "--oom-report",
        metavar="FILE",
        help="if the program runs out of GPU memory, write the explanation that follows its"
        " traceback to a file too: text, or data if its name ends in .json",
    )


def _add_simulation(add: Add) -> None:
    add(
        "--gpu",
        metavar="NAME|SIZE|FILE",
        help="simulate this GPU, also where there is a real one: a name (t4, rtx4090, a100, h100),"
        " its memory (24GiB), or a TOML file with its name, memory, compute_capability and"
        f" multiprocessors (default: the GPU of this machine, or {DEFAULT_GPU} if it has none)",
    )
    add("--num-gpus", type=int, metavar="N", help="number of GPUs to simulate (default: 1)")
    add(
        "--dry-run",
        action="store_true",
        help="simulate shapes only: nothing is computed and tensors take no host memory, so that a"
        " model of any size runs in seconds. Lines that read values are marked. Files of tensors"
        " (torch.save, safetensors, numpy, pickle) stay as they are; what would be in them can be"
        " read until the run ends. Everything else that the script does happens: it makes"
        " folders, writes logs and other files, and uses the network",
    )
    add(
        "--allow-writes",
        action="store_true",
        help="let a dry run write files of tensors, with zeros or arbitrary bytes for the values"
        " that it does not have",
    )
    add_memory_overhead(add, "simulated GPU")
    add(
        "--strict",
        action="store_true",
        help="simulate, and fail at the first line that would be marked ?: memory is not counted,"
        " or a dry run assumes a value",
    )
    # A separate value would be taken for the script.
    add(
        "--strict=estimates",
        dest="strict",
        action="store_const",
        const="estimates",
        help="simulate, and fail at the first line that would be marked ? or ~ (an estimate is"
        " counted)",
    )
    # Options that shipped under these names keep them, unseen.
    add("--count", dest="num_gpus", type=int, help=argparse.SUPPRESS)
    add("--context", dest="cuda_context", help=argparse.SUPPRESS)
    add("--others", dest="reserve", help=argparse.SUPPRESS)
