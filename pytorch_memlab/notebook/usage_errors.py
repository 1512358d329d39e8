"""Mistaken arguments in IPython: the message, and the lines that led to it."""

from __future__ import annotations

import linecache
import os
import sys
import traceback
from typing import TYPE_CHECKING

from .._common.cell_names import cell_name
from .._common.program_lines import is_of_program

if TYPE_CHECKING:
    from traceback import FrameSummary


def rendered(error: BaseException) -> list[str]:
    """The lines that IPython prints in place of a traceback.

    Args:
        error: whose message says it all; a cell of one line that made the mistake itself is not
            repeated.
    """
    message = f"{type(error).__name__}: {error}"
    places = [
        place
        for place in traceback.extract_tb(error.__traceback__)
        if is_of_program(place.filename) and not place.filename.startswith(_ipython_folder())
    ]
    if len(places) == 1 and len(linecache.getlines(places[0].filename)) == 1:
        return [message]
    return [message, *map(_line, places)]


def _line(place: FrameSummary) -> str:
    function = "" if place.name.startswith("<") else f", in {place.name}"
    return f"  {_file_name(place.filename)}, line {place.lineno}{function}: {place.line}"


def _file_name(filename: str) -> str:
    """A file as people know it, such as ``Cell In[3]``."""
    name = cell_name(filename)
    return filename if name is None else f"Cell {name}"


def _ipython_folder() -> str:
    module = sys.modules.get("IPython")
    path = "" if module is None else str(module.__file__)
    return os.path.join(os.path.dirname(path), "") if path else "<no IPython>"
