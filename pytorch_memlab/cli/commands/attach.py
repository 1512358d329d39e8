"""Record the memory of a process that runs already, line by line.

The process goes on. It writes its profile into a folder, every 30 seconds and when it ends; watch
shows the folder while it grows, and show when it is over. A process can be attached to if run
started it, if its program has the line `import pytorch_memlab.jobs.attachable`, or if it runs
Python 3.14 or later. What it allocated before is counted, but has no line.

for example:
  pytorch-memlab attach 4711
  pytorch-memlab attach -o job.memlab 4711
  pytorch-memlab attach --stop 4711
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack

from ..._common.text.quoted import shortened
from ...errors import UsageError
from ..common_options import number_from
from ..parser import CommandParser


def add_arguments(parser: CommandParser) -> None:
    add = parser.group("output")
    add(
        "-o --output FOLDER",
        "where the process writes its profile, a name that ends in .memlab (default:"
        " pid-PID.memlab)",
    )
    add(
        "--save-every SECONDS",
        "how often it does so (default: 30)",
        type=number_from(1, "seconds"),
    )
    add("--stop", "end the recording, and write the last profile", action="store_true")
    parser.add("PID", "the number of the process")


def prepare(options: argparse.Namespace, _process: ExitStack, /) -> Callable[[], None]:
    from ...jobs.attaching import attach, detach
    from ...jobs.folder import is_job_folder

    if not options.pid.isdecimal():
        raise UsageError(f"{shortened(options.pid)} is no number of a process")
    process = int(options.pid)
    name = options.output or f"pid-{options.pid}.memlab"
    if not is_job_folder(name):
        raise UsageError(f"{name} is no name of a folder of a job: end it in .memlab")
    if options.stop:
        file = detach(process)
        where = f": memory profile written to {file}" if file else ""
        return lambda: print(f"process {process} is recorded no more{where}", file=sys.stderr)
    folder = attach(process, os.path.abspath(name), options.save_every)
    path = os.path.relpath(folder) if folder.startswith(os.getcwd() + os.sep) else folder
    return lambda: print(
        f"process {process} writes its profile to {path}: pytorch-memlab watch {path}",
        file=sys.stderr,
    )
