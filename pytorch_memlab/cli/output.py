"""Where a command's report goes: to the terminal, or to a file of the format that its name asks."""

from __future__ import annotations

import sys
from collections.abc import Callable

from pytorch_memlab.errors import UsageError
from pytorch_memlab.records import Report
from pytorch_memlab.render import terminal
from pytorch_memlab.render.to_file import file_writer


def writer_to(path: str | None) -> Callable[[Report], None]:
    """What writes a report, checked before there is one.

    Args:
        path: a file ending in ``.txt``, ``.html`` or ``.json``, None for standard output.

    Returns:
        A function of the report. If the file cannot be written after all, standard output gets it.

    Raises:
        UsageError: another ending, or no file can be written there.
    """
    if path is None:
        return _to_terminal
    to_file = file_writer(path)

    def write(report: Report) -> None:
        try:
            to_file(report)
        except UsageError as error:
            _to_terminal(report)
            print(error, file=sys.stderr)
        else:
            print(f"memory profile written to {path}", file=sys.stderr)

    return write


def _to_terminal(report: Report) -> None:
    terminal.write(report, sys.stdout)
    sys.stdout.flush()
