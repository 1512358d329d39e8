"""Where a command's report goes: to the terminal, or to a file of the format that its name asks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial

from pytorch_memlab._common.standard_output import write_to_stdout
from pytorch_memlab.cli.ranks import path_of_rank, prints
from pytorch_memlab.errors import UsageError
from pytorch_memlab.records import Report


def writer_to(paths: Sequence[str]) -> Callable[[Report], None]:
    """What writes a report, checked before there is one.

    Args:
        paths: files ending in ``.txt``, ``.html`` or ``.json``; none for standard output. Each
            process that ``torchrun`` started writes files of its own, and one of them prints.

    Returns:
        A function of the report. If a file cannot be written after all, standard output gets it.

    Raises:
        UsageError: another ending, or no file can be written there.
    """
    if not paths:
        return _to_terminal if prints() else _to_nowhere
    from pytorch_memlab.render.to_file import file_writer

    files = {path: file_writer(path) for path in map(path_of_rank, paths)}

    def write(report: Report) -> None:
        written = [_is_written(report, path, to_file) for path, to_file in files.items()]
        if not all(written):
            _to_terminal(report)

    return write


def _is_written(report: Report, path: str, to_file: Callable[[Report], None]) -> bool:
    try:
        to_file(report)
    except UsageError as error:
        print(error, file=sys.stderr)
        return False
    if prints():
        print(f"memory profile written to {path}", file=sys.stderr)
    return True


def _to_nowhere(report: Report) -> None:
    """Another process prints its report."""


def _to_terminal(report: Report) -> None:
    from pytorch_memlab.render import terminal

    write_to_stdout(partial(terminal.write, report))
