"""Output files of reports."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from io import BufferedIOBase, RawIOBase, StringIO
from typing import IO

from .._common.checked_file import CheckedFile
from ..errors import UsageError


def printed_to(file: str | os.PathLike[str] | IO[str] | None) -> AbstractContextManager[object]:
    """Let ``print`` write to a file: what a subclass of the reporter prints goes there too.

    What no text can be printed to is refused at once.
    """
    if file is None:
        return nullcontext()
    if isinstance(file, (str, os.PathLike)):
        return _written_to(CheckedFile(os.fspath(file)))
    given: object = file
    if not hasattr(given, "write") or isinstance(given, (RawIOBase, BufferedIOBase)):
        kind = type(given).__name__
        raise UsageError(f"file must be a path or a file opened for text, not a {kind}")
    if getattr(file, "closed", False):
        raise UsageError("file is closed: give an open one, or a path")
    return redirect_stdout(file)


@contextmanager
def _written_to(file: CheckedFile) -> Iterator[None]:
    with redirect_stdout(StringIO()) as printed:
        yield
    file.write(printed.getvalue())
