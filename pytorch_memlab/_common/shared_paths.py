"""Paths in files that are shared: from the working folder or from ``~``, not from the root."""

from __future__ import annotations

import os
from typing import Final

_HERE: Final = "./"
_HOME: Final = "~/"


def stored(path: str) -> str:
    """A path as a file keeps it: ``./train.py``, ``~/lib/net.py``, or as it is elsewhere."""
    for mark, folder in ((_HERE, _working_folder()), (_HOME, os.path.expanduser("~"))):
        root = folder.rstrip(os.sep)
        if root and path.startswith(root + os.sep):
            return mark + path[len(root) + 1 :].replace(os.sep, "/")
    return path


def restored(text: str) -> str:
    """The path on this machine of what ``stored`` made, from the present working folder."""
    if text.startswith(_HERE):
        return os.path.join(_working_folder(), *text[len(_HERE) :].split("/"))
    if text.startswith(_HOME):
        return os.path.join(os.path.expanduser("~"), *text[len(_HOME) :].split("/"))
    return text


def shown(path: str) -> str:
    """A path as pages show it, without the mark of the working folder."""
    return stored(path).removeprefix(_HERE)


def _working_folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return ""
