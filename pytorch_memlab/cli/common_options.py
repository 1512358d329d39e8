"""Options that several commands take, each declared once, and what is read from them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .._common.process.ranks import this_rank
from .._common.text.quoted import shortened
from ..errors import HistoryError, UsageError
from ..profiles.overview import SORTS, Choice
from .parser import Add

if TYPE_CHECKING:
    from ..history.model import AllocationHistory

GPU_SPEC = "NAME|SIZE|FILE"
"""The value of an option that takes a GPU."""


def add_program(add: Add, note: str = "") -> None:
    """Declare ``-m``, and the program with its arguments; ``note`` is more help on the script."""
    add("-m --module", "run a module, as python -m does", dest="is_module", action="store_true")
    add("SCRIPT", f"the file, or with -m the module, to run{note}")
    # Not required: Python before 3.13 names it among the missing arguments otherwise.
    rest = add("ARGS", "arguments of the program", dest="arguments", nargs=argparse.REMAINDER)
    rest.required = False


def add_functions_and_columns(add: Add, functions: str, columns: str) -> None:
    """Declare ``-f`` and ``-c``, which have these texts."""
    add_list(add, "-f --function LIST", functions, dest="functions")
    add_list(add, "-c --columns LIST", columns)


def add_list(add: Add, names: str, text: str, **settings: Any) -> None:
    """Declare a repeatable option of words between commas."""
    add(names, text, action="extend", type=lambda words: words.split(","), **settings)


def add_device(add: Add, verb: str) -> None:
    """Declare ``--device`` of a command that reads a file; ``verb`` is what it does with a GPU."""
    text = f"{verb} this GPU (default: all that were used)"
    add("--device DEVICE", text, type=_gpu_index)


def add_rows(add: Add) -> None:
    """Declare ``--rows`` of a command that prints lists."""
    text = "show the N first rows of each list (default: 10)"
    add("-n --rows N", text, type=number_from(1), default=10)


def add_history_file(add: Add) -> None:
    add("FILE", "the snapshot, or a profile of run --history")


def add_output_files(add: Add, text: str, *, required: bool = False) -> None:
    """Declare ``-o``, repeatable."""
    add("-o --output FILE", text, dest="outputs", action="append", required=required)


def add_private(add: Add, noun: str) -> None:
    """Declare ``--private`` of a command that writes files; ``noun`` is which."""
    add(
        "--private",
        f"leave the program's arguments, the message of its error, and the folders of its files"
        f" out of {noun}: paths begin at the working folder, and a file elsewhere has its name"
        " alone. Source code and names of functions stay",
        action="store_true",
    )


def add_memory_overhead(add: Add, gpu: str) -> None:
    """Declare the memory of each GPU that is not the program's."""
    add(
        "--cuda-context SIZE",
        f"memory that the CUDA context takes of each {gpu}, such as 450MiB (default: a"
        " built-in estimate for a GPU with a name, 0 for a size)",
    )
    add("--reserve SIZE", f"memory that other processes use on each {gpu} (default: 0)")


def memory_overhead(options: argparse.Namespace) -> tuple[int | None, int]:
    """Bytes of the CUDA context, None for the estimate, and of other processes."""
    from ..simulation.inspect import read_size

    context = options.cuda_context
    return (
        None if context is None else read_size("--cuda-context", context),
        read_size("--reserve", 0 if options.reserve is None else options.reserve),
    )


def add_allow_writes(add: Add) -> None:
    """Declare the option that lets a dry run change files."""
    add(
        "--allow-writes",
        "let a dry run change, remove and rename files, write files of tensors with zeros or"
        " arbitrary bytes for the values that it does not have, and start every command",
        action="store_true",
    )


def add_assume(add: Add) -> None:
    """Declare the sizes that a dry run cannot know."""
    from ..simulation.inspect import SIZED_OPS

    add_list(
        add,
        "--assume LIST",
        "the size of what values decide, which a dry run takes to be as large as it can be: a"
        " fraction of the elements (nonzero=0.001, mask=2%%), rounded up, or their number"
        f" (unique=120), for each of these ops: {', '.join(SIZED_OPS)}; or for a line of a file,"
        " which goes before them: train.py:12=0.001. Separated by commas, repeatable",
    )


def assumptions(options: argparse.Namespace) -> dict[str, str]:
    """The sizes of ``--assume``, checked."""
    from ..simulation.inspect import AssumedSizes

    amounts = {}
    for word in options.assume or ():
        name, equals, amount = word.rpartition("=")
        if not (name and equals):
            raise UsageError(
                f"--assume takes an op or a line, and how much of it: nonzero=0.001, not {word!r}"
            )
        amounts[_beside_script(name, options)] = amount
    return AssumedSizes(amounts).given()


def _beside_script(name: str, options: argparse.Namespace) -> str:
    """A line of a file in the folder of the script, which reports name without the folder."""
    file, colon, line = name.rpartition(":")
    path = os.path.join(os.path.dirname(options.script), file)
    if colon and not options.is_module and not os.path.isfile(file) and os.path.isfile(path):
        return f"{path}:{line}"
    return name


def add_report_options(add: Add) -> None:
    """Declare the options that choose a part of the report."""
    add(
        "--top N",
        "report the N functions that add most memory, and N lines of each (default: 10)",
        type=number_from(1),
    )
    add(
        "--sort KEY",
        f"order of the functions: {', '.join(SORTS)} (default: what a call adds, kept"
        " and temporary memory together, without that of the functions that they call)",
        choices=SORTS,
    )
    add(
        "--all",
        "report every function and line in the order of the source, also those that added nothing",
        dest="everything",
        action="store_true",
    )


def report_choice(options: argparse.Namespace) -> Choice | None:
    """The part of the report to show; None if columns alone were asked for: tables show them."""
    if options.top is not None and options.everything:
        raise UsageError("--all shows everything, --top a part: give one of them")
    choice = Choice(options.top, options.sort, options.everything)
    return None if options.columns and choice == Choice() else choice


def number_from(least: int, noun: str = "", *, most: int | None = None) -> Callable[[str], int]:
    """The type of an option that takes a whole number; ``noun`` is what it counts, if not clear."""
    kind = f"a number of {noun}" if noun else "a number"
    limits = f"from {least} on" if most is None else f"from {least} to {most}"

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least or (most is not None and number > most):
            written = shortened(text) if text.strip() else repr(text)
            raise argparse.ArgumentTypeError(f"is {kind} {limits}, not {written}")
        return number

    return read


MOST_GPUS = 128
"""PyTorch keeps the index of a device in 8 bits."""

number_of_gpus = number_from(1, most=MOST_GPUS)


def simulated_gpus(options: argparse.Namespace) -> int:
    """The number of GPUs: without an option, one for each rank of this machine."""
    gpus: int = options.num_gpus or min(this_rank().local_world_size, MOST_GPUS)
    return gpus


def _gpu_index(text: str) -> int:
    """The number of a GPU, from ``1`` or ``cuda:1``."""
    try:
        return int(text.removeprefix("cuda:"))
    except ValueError:
        message = f"a GPU is named 1 or cuda:1, not {shortened(text)!r}"
        raise argparse.ArgumentTypeError(message) from None


def recorded_gpus(options: argparse.Namespace) -> list[tuple[str, AllocationHistory, int]]:
    """The label of the run (empty for a single run), its history, and a GPU that is asked for."""
    from ..history.snapshot import read_snapshot
    from ..saved import profile_file

    profile = profile_file.read_if_saved(options.file)
    if profile is not None:
        histories = profile.all_histories()
        if not histories:
            raise HistoryError(profile_file.NO_HISTORY)
    else:
        histories = {"": read_snapshot(options.file)}
    return [
        (run, history, device)
        for run, history in histories.items()
        for device in _recorded_devices(history, options.file, options.device)
    ]


def _recorded_devices(history: AllocationHistory, path: str, device: int | None) -> list[int]:
    """The GPU that was asked for, or else all that were used."""
    used = history.used_devices()
    if not used:
        raise UsageError(
            f"{path} has no events: record them with torch.cuda.memory._record_memory_history() "
            "before the program allocates"
        )
    if device is None:
        return used
    if device not in [device_history.device for device_history in history.devices]:
        choices = " or ".join(str(index) for index in used)
        raise UsageError(f"{path} has no GPU {device}: --device takes {choices}")
    return [device]
