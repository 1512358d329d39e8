"""Lines of the program: neither torch's nor this package's."""

from __future__ import annotations

import os
import sys

import torch

from .user_code import OWN_FOLDER


def folder_names(*folders: str) -> tuple[str, ...]:
    """Folders as code objects may name the files in them: through links, and where those lead."""
    both = (name for folder in folders for name in (folder, os.path.realpath(folder)))
    return tuple(os.path.join(name, "") for name in dict.fromkeys(both))


_SKIPPED = (*folder_names(os.path.dirname(torch.__file__), OWN_FOLDER), "<frozen")


def is_of_program(filename: str) -> bool:
    """True if a file belongs to the program, or to a library that it uses.

    >>> is_of_program("train.py"), is_of_program(torch.nn.__file__), is_of_program(__file__)
    (True, False, False)
    """
    return not filename.startswith(_SKIPPED)


def current_line() -> tuple[str, int]:
    """File and number of the innermost line of the program that runs now in this thread."""
    frame = sys._getframe(1)
    while frame.f_back is not None and not is_of_program(frame.f_code.co_filename):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno
