"""Where a command's report goes: to the terminal, or to a file of the format that its name asks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from pytorch_memlab._common.standard_output import write_to_stdout
from pytorch_memlab.cli.ranks import path_of_rank, prints
from pytorch_memlab.errors import UsageError
from pytorch_memlab.records import Report


def writer_to(path: str | None) -> Callable[[Report], None]:
    """What writes a report, checked before there is one.

    Args:
        path: a file ending in ``.txt``, ``.html`` or ``.json``, None for standard output. Each
            process that ``torchrun`` started writes a file of its own, and one of them prints.

    Returns:
        A function of the report. If the file cannot be written after all, standard output gets it.

    Raises:
        UsageError: another ending, or no file can be written there.
    """
    if path is None:
        return _to_terminal if prints() else _to_nowhere
    from pytorch_memlab.render.to_file import file_writer

    path = path_of_rank(path)
    to_file = file_writer(path)

    def write(report: Report) -> None:
        try:
            to_file(report)
        except UsageError as error:
            _to_terminal(report)
            print(error, file=sys.stderr)
        else:
            if prints():
                print(f"memory profile written to {path}", file=sys.stderr)

    return write


def _to_nowhere(report: Report) -> None:
    """Another process prints its report."""


def _to_terminal(report: Report) -> None:
    from pytorch_memlab.render import terminal

    write_to_stdout(partial(terminal.write, report))
