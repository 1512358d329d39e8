"""IPython, which is in ``sys.modules`` wherever one of its shells is: its import takes 0.5 s."""

from __future__ import annotations

import os
import sys
from typing import Any, Final

CELL_NAMES: Final[dict[str, str]] = {}
"""Names of cells by the file of their code, in a process where they run without IPython."""


def ipython_shell() -> Any:
    """The shell that runs the program, None outside IPython."""
    module = sys.modules.get("IPython")
    return None if module is None else module.get_ipython()


def cell_name(filename: str) -> str | None:
    """The name of a cell, such as ``In[3]``; the file of a kernel's cell is a temporary one.

    >>> cell_name("train.py")
    """
    shell = ipython_shell()
    if shell is None or filename in CELL_NAMES:
        return CELL_NAMES.get(filename)
    named = shell.compile.format_code_name(filename)
    return None if named is None or named[0] != "Cell" else str(named[1])


def source_name(path: str) -> str:
    """The path of a file; the name of the cell for the file of a cell, which a kernel removes.

    >>> source_name("/home/me/train.py")
    '/home/me/train.py'
    """
    return cell_name(path) or path


def file_name(path: str) -> str:
    """The name of a file without its folder; that of the cell for the file of a cell.

    >>> file_name("/home/me/train.py")
    'train.py'
    """
    return cell_name(path) or os.path.basename(path)
