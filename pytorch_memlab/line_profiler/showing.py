"""Tables where the user sees them: in a notebook, in a terminal, or in a file."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from .line_records import RecordsDisplay


def show(display: RecordsDisplay) -> None:
    """Show tables now: in IPython as the result of a cell, elsewhere on ``sys.stdout``."""
    module = sys.modules.get("IPython")
    if module is not None and module.get_ipython() is not None:
        from IPython.display import display as show_in_cell

        show_in_cell(display)
    else:
        write(display, sys.stdout)


def write(display: RecordsDisplay, stream: TextIO | None) -> None:
    """Write tables as text, with colours in a terminal.

    ``sys.stdout`` is None where it was closed: nothing is written then, as ``print`` does.
    """
    if stream is None:
        return
    if stream.isatty():
        from ..render import text

        text.write(display.report, stream)
    else:
        stream.write(f"{display}\n")
