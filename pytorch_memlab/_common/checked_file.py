"""A file that is checked before there is anything to write."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import BinaryIO

from ..errors import UsageError
from .atomic_write import check_writable, write_file, write_whole
from .free_file import check_free, free_path

Content = str | bytes | Callable[[BinaryIO], object]
"""Text, bytes, or what writes them."""


class CheckedFile:
    """A file that gets what a run found, also if the program changes its folder in between."""

    # ``keeps_older``: a file of another process that is there at the end stays as well: the name of
    # this one then has the number of the process.
    def __init__(self, name: str, *, keeps_older: bool = False) -> None:
        check_writable(name)
        if keeps_older:
            check_free(name)
        self._name = name
        self._path = Path(name).absolute()
        self._keeps_older = keeps_older
        self.ending = PurePath(name).suffix.lower()

    def write(self, content: Content) -> str:
        """Write the file whole, or not at all."""
        path, name = self._path, self._name
        if self._keeps_older and (path := free_path(path)) != self._path:
            name = str(PurePath(name).with_name(path.name))
        if isinstance(content, str):
            write_file(path, content, called=name)
        elif isinstance(content, bytes):
            write_whole(path, lambda file: file.write(content), called=name)
        else:
            write_whole(path, content, called=name)
        return name

    def write_or_tell(self, make: Callable[[], Content]) -> str | None:
        """Write the file, or say on standard error why it cannot be written."""
        try:
            return self.write(make())
        except UsageError as error:
            print(error, file=sys.stderr)
            return None
