"""Show the memory of a job or a process while it runs, in the terminal.

The screen has the ranks with their headroom, what holds the memory at the peak of one of them, its
lines, and the loop whose memory grows. Keys: s sorts the lines by the next column, Enter opens a
line or chooses a rank, h goes back to the rank with the highest peak, Tab goes to the other table,
q quits. The job goes on.

Of a folder, watch reads the files that run -o NAME.memlab writes. A process is asked for its
profile every few seconds; attach --help says which processes can be asked.

for example:
  pytorch-memlab watch job.memlab
  pytorch-memlab watch 4711
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from tempfile import mkdtemp

from ...errors import UsageError
from ..parser import CommandParser

_EVERY = 2.0
"""Seconds between two readings of a folder."""

_ASK_EVERY = 5.0
"""Seconds between two requests to a process."""


def add_arguments(parser: CommandParser) -> None:
    parser.add("PID|FOLDER", "the number of a process, or the folder of a job", dest="target")


def prepare(options: argparse.Namespace, process: ExitStack, /) -> Callable[[], None]:
    try:
        from ..watch_screen import WatchApp
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "textual":
            raise
        raise UsageError(
            f"the screen needs textual: {sys.executable} -m pip install textual; without it,"
            " pytorch-memlab show prints the folder of a job"
        ) from None
    target = options.target
    if not sys.stdout.isatty():
        raise UsageError("watch needs a terminal: pytorch-memlab show prints the folder of a job")
    if target.isdecimal() and not os.path.exists(target):
        folder, ask, every = _asked(int(target), process)
        called = f"process {target}"
    else:
        if not os.path.isdir(target):
            raise UsageError(f"{target} is no folder of a job, and no number of a process")
        folder, ask, every, called = target, lambda: None, _EVERY, os.path.basename(target)
    app = WatchApp(folder, called, every, ask)
    return app.run


def _asked(number: int, process: ExitStack) -> tuple[str, Callable[[], None], float]:
    """The folder of a process, and what has it written again."""
    from shutil import rmtree

    from ...jobs.attaching import attach, detach_if_there, folder_of

    temporary = mkdtemp(prefix="pytorch-memlab.")
    process.callback(rmtree, temporary, ignore_errors=True)
    own = os.path.join(temporary, "process.memlab")
    folder = attach(number, own, None)  # that of the process, if it has one
    if folder == own:
        process.callback(detach_if_there, number)

    def ask() -> None:
        folder_of(number)  # writes it again

    return folder, ask, _ASK_EVERY
