"""``run -- torchrun ...``: the command of a launcher, whose ranks are profiled."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from tempfile import TemporaryDirectory

from ...errors import ProfileError
from ...jobs.folder import JobFolder, is_job_folder
from ...jobs.launch import launched, launcher_command, name_job
from ..exit_codes import FAILED
from ..jobs import print_job
from ..notices import tell_usage_error
from ..parser import CommandParser
from .words import words_of


def prepared_launch(
    options: argparse.Namespace, parser: CommandParser, process: ExitStack
) -> Callable[[], int]:
    """Check the options of a job, and return what runs it."""
    names = options.outputs or ()
    folder = next(filter(is_job_folder, names), None)
    words = [*words_of(options, parser)]
    if not names:
        temporary = process.enter_context(TemporaryDirectory(prefix="pytorch-memlab."))
        folder = os.path.join(temporary, "job.memlab")
        words.append(f"--output={folder}")
    name_job()
    if folder is not None:
        JobFolder(folder, replaces_older=options.force)
    command = [options.script, *options.arguments]
    command = launcher_command(command, is_module=options.is_module)
    return partial(_run, command, words, folder)


def _run(command: list[str], words: list[str], folder: str | None) -> int:
    status = launched(command, words)
    if folder is not None:
        try:
            print_job(folder)
        except ProfileError as error:  # no rank of this machine started Python
            tell_usage_error("run", error)
            return status or FAILED
    return status
