"""Where a report is printed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from io import BufferedIOBase, RawIOBase
from typing import IO

from ..errors import UsageError


def check_file(file: object) -> None:
    """Refuse what no text can be printed to.

    Raises:
        UsageError: it is neither a path nor an open text file.
    """
    if file is None or isinstance(file, (str, os.PathLike)):
        return
    if not hasattr(file, "write") or isinstance(file, (RawIOBase, BufferedIOBase)):
        kind = type(file).__name__
        raise UsageError(f"file must be a path or a file opened for text, not a {kind}")
    if getattr(file, "closed", False):
        raise UsageError("file is closed: give an open one, or a path")


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
