"""Where a report is printed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from typing import IO


@contextmanager
def printed_to(file: str | os.PathLike[str] | IO[str] | None) -> Iterator[None]:
    """Let ``print`` write to a file: what a subclass of the reporter prints goes there too.

    Args:
        file: a path, whose file is written anew, or an open text file; None for the standard
            output.
    """
    with ExitStack() as exits:
        if isinstance(file, (str, os.PathLike)):
            file = exits.enter_context(open(file, "w", encoding="utf-8"))
        if file is not None:
            exits.enter_context(redirect_stdout(file))
        yield
