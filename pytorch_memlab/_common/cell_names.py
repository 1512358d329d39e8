"""The name that IPython shows for the code of a cell."""

from __future__ import annotations

import sys


def cell_name(filename: str) -> str | None:
    """The name of a cell, such as ``In[3]``; the file of a kernel's cell is a temporary one.

    >>> cell_name("train.py")
    """
    module = sys.modules.get("IPython")
    shell = None if module is None else module.get_ipython()
    named = None if shell is None else shell.compile.format_code_name(filename)
    return None if named is None or named[0] != "Cell" else str(named[1])
