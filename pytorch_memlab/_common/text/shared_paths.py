"""Paths in files that are shared: from the working folder or from ``~``, not from the root.

Note [Private files]
In a private file, what lies outside the working folder has its base name alone. Files of libraries
keep their path from ``site-packages`` or ``lib/python3.x`` on, which everybody has: by it, a
reader of the file tells lines of the program from those of libraries. Renderers need whole paths,
to find the source, and ask here for the names that they write. So a context says whether names are
private, and the data stay as they are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Final

from ..frames.user_code import path_of_library
from ..interrupts.whole_block import whole_block

_HERE: Final = "./"
_HOME: Final = "~/"

_ABSOLUTE: Final = re.compile(r"[/\\~]|[A-Za-z]:[/\\]")
_IN_TEXT: Final = re.compile(
    r"(?<![\w.~/\\])(?<!:(?=//))(?:~|\.\.|[A-Za-z]:)?[/\\](?=\S)(?:[^\n'\"`,;:()<>]*[/\\])?[^\s'\"`,;:()<>]+"
)
"""A path, which may have spaces before its last part."""

_is_private: Final = ContextVar("is_private", default=False)


@whole_block
def private_names(is_on: bool = True) -> Iterator[None]:
    """See Note [Private files]."""
    token = _is_private.set(is_on)
    try:
        yield
    finally:
        _is_private.reset(token)


def stored(path: str) -> str:
    """A path as a file keeps it: ``./train.py``, ``~/lib/net.py``, or as it is elsewhere."""
    if _is_private.get():
        return private(path)
    return _within(path, _HERE, _working_folder()) or _within(path, _HOME, _home()) or path


def private(path: str) -> str:
    """A path as a private file keeps it.

    >>> private("/home/me/secret/train.py"), private("/v/site-packages/torch/_ops.py")
    ('train.py', 'site-packages/torch/_ops.py')
    """
    within = _within(path, _HERE, _working_folder())
    parts = path.replace("\\", "/").rstrip("/").split("/")
    if within or not (_ABSOLUTE.match(path) or ".." in parts):
        return within or path
    return path_of_library(path) or parts[-1]


def private_text(text: str) -> str:
    """A text without absolute paths.

    >>> private_text("left as it was (2): /srv/our secret/a.pt, ~/b.pt")
    'left as it was (2): a.pt, b.pt'
    """
    folder = _working_folder().rstrip(os.sep)
    if folder:
        text = text.replace(folder + os.sep, "")
    return _IN_TEXT.sub(lambda path: private(path[0]), text)


def restored(text: str) -> str:
    """The path on this machine of what ``stored`` made, from the present working folder."""
    if text.startswith(_HERE):
        return os.path.join(_working_folder(), *text[len(_HERE) :].split("/"))
    if text.startswith(_HOME):
        return os.path.join(_home(), *text[len(_HOME) :].split("/"))
    return text


def shown(path: str) -> str:
    """A path as pages show it, without the mark of the working folder."""
    return stored(path).removeprefix(_HERE)


def _within(path: str, mark: str, folder: str) -> str:
    """The path from a folder on, after the mark of the folder; empty if it is not in it."""
    root = folder.rstrip(os.sep)
    if root and path.startswith(root + os.sep):
        return mark + path[len(root) + 1 :].replace(os.sep, "/")
    return ""


def _home() -> str:
    return os.path.expanduser("~")


def _working_folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return ""
