"""Mistaken arguments in IPython: the message, and the lines that led to it."""

from __future__ import annotations

import linecache
import os
import sys
import traceback

from .._common.frames.program_lines import is_of_program
from .._common.process.ipython import cell_name


def rendered(error: BaseException) -> list[str]:
    """The lines that IPython prints in place of a traceback."""
    lines = [f"{type(error).__name__}: {error}"]
    module = sys.modules.get("IPython")
    path = "" if module is None else str(module.__file__)
    ipython = os.path.join(os.path.dirname(path), "") if path else "<no IPython>"
    places = [
        place
        for place in traceback.extract_tb(error.__traceback__)
        if is_of_program(place.filename) and not place.filename.startswith(ipython)
    ]
    # A cell of one line that made the mistake itself is not repeated.
    if len(places) == 1 and len(linecache.getlines(places[0].filename)) == 1:
        return lines
    for place in places:
        name = cell_name(place.filename)
        file = place.filename if name is None else f"Cell {name}"
        function = "" if place.name.startswith("<") else f", in {place.name}"
        lines.append(f"  {file}, line {place.lineno}{function}: {place.line}")
    return lines
