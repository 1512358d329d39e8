"""The source of a line that a history names, where this machine has the file."""

from __future__ import annotations

import linecache
import os
import stat

_LARGEST = 10 * 2**20


def source_line(filename: str, line: int | None) -> str:
    """One line of Python, without the space around it.

    A history may come from elsewhere, so that its names can be of anything: only Python files of a
    usual size are read, and the cells of this notebook.
    """
    if not line or not (filename in linecache.cache or _is_python_file(filename)):
        return ""
    return linecache.getline(filename, line).strip()


def _is_python_file(filename: str) -> bool:
    try:
        found = os.stat(filename)
    except (OSError, ValueError):
        return False
    return filename.endswith(".py") and stat.S_ISREG(found.st_mode) and found.st_size <= _LARGEST
