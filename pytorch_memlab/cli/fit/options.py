"""The options of ``pytorch-memlab fit``, in the groups that its help shows."""

from __future__ import annotations

from pytorch_memlab.cli.common_options import (
    add_memory_overhead,
    add_program,
    comma_list,
    number_from,
)
from pytorch_memlab.cli.parser import CommandParser


def add_fit_options(parser: CommandParser) -> None:
    """Declare the options."""
    parser.usage = "%(prog)s [options] (SCRIPT | -m MODULE) [--] [ARGS ...]"
    parser.hint_on_unknown = "; options of the script go after it: fit SCRIPT ARGS"
    add_program(parser.add_argument_group("what to run").add_argument)
    add = parser.add_argument_group("how long").add_argument
    add(
        "--steps",
        type=number_from(1, "optimizer steps"),
        metavar="N",
        help="end the program after N optimizer steps (default: when the peak of a step repeats;"
        " a program without an optimizer runs to its end)",
    )
    add = parser.add_argument_group("GPUs").add_argument
    add(
        "--gpu",
        action="extend",
        type=comma_list,
        metavar="LIST",
        help="try these GPUs: names (t4, rtx4090, a100, h100), sizes (24GiB), or TOML files with"
        " name, memory, compute_capability and multiprocessors. Separated by commas, repeatable"
        " (default: all GPUs that have a name)",
    )
    add(
        "--num-gpus",
        type=int,
        default=1,
        metavar="N",
        help="number of GPUs that the program has, all alike (default: 1)",
    )
    add_memory_overhead(add, "GPU")
