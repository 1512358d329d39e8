"""Output files of reports."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import BufferedIOBase, RawIOBase, StringIO
from typing import IO

from .._common.checked_file import check_writable, write_file
from ..errors import UsageError


def check_file(file: object) -> None:
    """Refuse what no text can be printed to."""
    if file is None:
        return
    if isinstance(file, (str, os.PathLike)):
        check_writable(file)
        return
    if not hasattr(file, "write") or isinstance(file, (RawIOBase, BufferedIOBase)):
        kind = type(file).__name__
        raise UsageError(f"file must be a path or a file opened for text, not a {kind}")
    if getattr(file, "closed", False):
        raise UsageError("file is closed: give an open one, or a path")


@contextmanager
def printed_to(file: str | os.PathLike[str] | IO[str] | None) -> Iterator[None]:
    """Let ``print`` write to a file: what a subclass of the reporter prints goes there too."""
    if file is None:
        yield
    elif isinstance(file, (str, os.PathLike)):
        with redirect_stdout(StringIO()) as printed:
            yield
        write_file(file, printed.getvalue())
    else:
        with redirect_stdout(file):
            yield
