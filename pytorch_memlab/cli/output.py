"""Where a command's report goes: to the terminal, or to a file of the format that its name asks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from pytorch_memlab.errors import UsageError
from pytorch_memlab.records import Report
from pytorch_memlab.render import renderer_for, terminal


def writer_to(path: str | None) -> Callable[[Report], None]:
    """What writes a report, checked before there is one.

    Args:
        path: a file ending in ``.txt``, ``.html`` or ``.json``, None for standard output.

    Returns:
        A function of the report. The path stays what it was if the program changes its folder.

    Raises:
        UsageError: another ending, or no file can be written there.
    """
    if path is None:
        return _to_terminal
    render = renderer_for(path)
    file = Path(path).absolute()
    if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        raise UsageError(f"cannot write {path}: no such folder, or no right to write there")

    def write(report: Report) -> None:
        file.write_text(render(report), encoding="utf-8")
        print(f"memory profile written to {path}", file=sys.stderr)

    return write


def _to_terminal(report: Report) -> None:
    terminal.write(report, sys.stdout)
    sys.stdout.flush()
