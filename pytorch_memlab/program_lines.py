"""Which lines are the program's: neither torch's nor this package's own."""

from __future__ import annotations

import os
import sys

import torch

_SKIPPED = tuple(
    os.path.join(os.path.dirname(file), "")
    for path in (torch.__file__, __file__)
    for file in (path, os.path.realpath(path))
)


def is_of_program(filename: str) -> bool:
    """Whether a file is the program's own, or that of a library that it uses.

    Args:
        filename: as a code object has it.

    >>> is_of_program("train.py"), is_of_program(torch.nn.__file__), is_of_program(__file__)
    (True, False, False)
    """
    return not (filename.startswith(_SKIPPED) or filename.startswith("<frozen"))


def current_line() -> tuple[str, int]:
    """File and number of the innermost line of the program that runs now in this thread."""
    frame = sys._getframe(1)
    while frame.f_back is not None and not is_of_program(frame.f_code.co_filename):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno
