"""The answer for a job, in the terminal or in files."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from .._common.process.standard_output import print_to_stdout
from ..errors import UsageError
from ..render.output_format import JobResults
from .exit_codes import USAGE_ERROR
from .output import OutputFile, is_profile, write_all

if TYPE_CHECKING:
    from ..profiles.job import Job


def is_job(path: str) -> bool:
    """True for the folder of a job, and for the file that ``merge`` made of one."""
    from ..jobs import reading

    return reading.is_job(path)


def print_job(path: str) -> None:
    """Print the answer for the folder of a job."""
    from ..jobs.reading import read_job
    from ..render import job

    print_to_stdout(job.text(read_job(path), os.path.basename(path)))


def prepared_job(options: argparse.Namespace) -> Callable[[], int]:
    """Read a job, and return what shows it."""
    from ..jobs.reading import read_job
    from ..render.job import text

    for name in ("functions", "columns", "top", "sort", "everything"):
        if getattr(options, name):
            raise UsageError(
                f"{options.file} is a job of many ranks: give the file of one of them, such as"
                f" {os.path.join(options.file, 'rank0.attempt0.json')}, to choose a part"
            )
    outputs = options.outputs or ()
    files = [_output(name, options, options.force) for name in outputs]
    job = _private(read_job(options.file), options)
    if files:
        results = JobResults(job, _called(options))
        return lambda: write_all(files, results, "answer for the job")

    def show() -> int:
        print_to_stdout(text(job, _called(options)))
        return 0

    return show


def prepared_merge(options: argparse.Namespace) -> Callable[[], int]:
    """Read a job, and return what writes it to a file."""
    from ..jobs.reading import read_job

    file = _output(options.output, options, options.force)
    job = _private(read_job(options.files[0]), options)

    def write() -> int:
        if not file.write(JobResults(job, _called(options)), "", says_where=False):
            return USAGE_ERROR
        ranks = len(job.last_ends)
        print(f"merged profile of {ranks} ranks written to {options.output}", file=sys.stderr)
        return 0

    return write


def _output(name: str, options: argparse.Namespace, force: bool) -> OutputFile[JobResults]:
    return OutputFile(
        name, JobResults, keeps_older=is_profile(name) and not force, is_private=options.private
    )


def _called(options: argparse.Namespace) -> str:
    return os.path.basename(str(getattr(options, "file", "") or options.files[0]).rstrip("/"))


def _private(job: Job, options: argparse.Namespace) -> Job:
    from ..profiles.privacy import private_job

    return private_job(job) if options.private else job
