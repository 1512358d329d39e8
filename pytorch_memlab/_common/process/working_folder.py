"""Folders for what a process needs while it works.

A process that is killed removes nothing. So a child process makes its folders in one that its
parent removes.
"""

from __future__ import annotations

import os
import tempfile

_within: str | None = None


def make_within(folder: str) -> None:
    """Make all folders of this process in another one from now on."""
    global _within
    _within = folder


def new_folder(prefix: str) -> str:
    return os.path.realpath(tempfile.mkdtemp(prefix=prefix, dir=_within))
