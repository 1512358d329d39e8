"""A terminal that keeps what is written to it."""

from __future__ import annotations

import io
import os
from unittest.mock import patch


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self):
        return True


def coloured(write, shown, width=80):
    """The text that ``write(shown, stream)`` writes to a terminal of 16 colours."""
    stream = Terminal()
    others = ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLORTERM", "LINES")
    with patch.dict(os.environ, {"TERM": "xterm", "COLUMNS": str(width)}):
        for name in others:
            os.environ.pop(name, None)
        write(shown, stream)
    return stream.getvalue()
