"""Files that a dry run does not write: their paths, and what they would have held.

Note [Files without values]

A file that would hold values which a dry run does not have is not written. What the program would
have written goes to a copy in the folder for temporary files, in which tensors without values
stand by their sizes alone. Whatever reads the path within the run, asks whether it exists or lists
its folder, finds the copy. The file itself stays as it is.

Text files, folders, other libraries' files and everything outside of this process are not watched.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from typing import Any

MARK = b".pytorch_memlab_tensors_without_values"
"""Stands in the bytes of everything that was saved with tensors that have no values."""

_ENDINGS = (".distcp", ".metadata", ".metadata.tmp")
"""Of the files that PyTorch writes for a distributed checkpoint."""
_unlink = os.unlink


class KeptFiles:
    """The files of one dry run that are not written."""

    def __init__(self) -> None:
        self._copies: dict[str, str] = {}
        self._folders: set[str] = set()
        self._named: dict[str, str] = {}
        self._lock = threading.RLock()
        self._is_closed = False
        self._is_told = False

    def copy_of(self, path: Any) -> str | None:
        """The file that holds what would be at a path."""
        if not isinstance(path, (str, bytes, os.PathLike)) or not self._copies:
            return None
        return self._copies.get(resolved(path))

    def new_copy(self) -> str:
        """An empty file in the folder for temporary files."""
        descriptor, path = tempfile.mkstemp(prefix=_prefix())
        os.close(descriptor)
        return path

    def keep(self, path: Any, copy: str) -> None:
        """Take the copy for the file."""
        with self._lock:
            if self._is_closed:
                _delete(copy)
                return
            before = self._copies.get(resolved(path))
            self._copies[resolved(path)] = copy
            if before is not None and before != copy:
                _delete(before)
            if not self.is_in_kept_folder(path):
                self.tell(path)

    def keep_folder(self, path: Any) -> None:
        """Keep every file of a distributed checkpoint that is written there from now on."""
        with self._lock:
            self._folders.add(resolved(path))
            self.tell(path)

    def is_in_kept_folder(self, path: Any) -> bool:
        """True if a file belongs to a distributed checkpoint that is kept."""
        if not self._folders:
            return False
        folder, name = os.path.split(resolved(path))
        return folder in self._folders and name.endswith(_ENDINGS)

    def drop(self, path: Any) -> None:
        """Forget the copy of a file: the file itself was written."""
        with self._lock:
            copy = self._copies.pop(resolved(path), None)
        if copy is not None:
            _delete(copy)

    def move(self, source: Any, target: Any) -> None:
        """Take a copy under another path."""
        with self._lock:
            copy = self._copies.pop(resolved(source))
            self._named.pop(resolved(source), None)
            self.keep(target, copy)

    def move_folder(self, source: str, target: str) -> None:
        """Follow a folder that was moved with the files that would be in it."""
        with self._lock:
            for path in self._within(source):
                self._copies[target + path[len(source) :]] = self._copies.pop(path)

    def names_in(self, folder: Any) -> list[str]:
        """The names of the files that would be in a folder."""
        if not isinstance(folder, (str, os.PathLike)) or not self._copies:
            return []
        parent = resolved(folder)
        parts = map(os.path.split, self._copies.copy())
        return [name for of_file, name in parts if of_file == parent]

    def drop_folder(self, folder: str) -> None:
        """Forget the copies of the files that would be in a folder that was removed."""
        for path in self._within(folder):
            self.drop(path)

    def _within(self, folder: str) -> list[str]:
        return [path for path in self._copies if path.startswith(folder + os.sep)]

    def tell(self, path: Any) -> None:
        """Name a path in the reports, and the first one on standard error at once."""
        name = os.fsdecode(os.fspath(path))
        with self._lock:
            if not self._is_told:
                self._is_told = True
                print(
                    f"pytorch-memlab: dry run: {name} is not written, its tensors have no values;"
                    " the same goes for all that follow (--allow-writes, or"
                    " simulate(..., allow_writes=True), writes them)",
                    file=sys.stderr,
                )
            self._named[resolved(path)] = name

    def paths(self) -> tuple[str, ...]:
        """The paths of all of them, as the program named them."""
        return tuple(self._named.copy().values())

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            copies = list(self._copies.values())
            self._copies.clear()
        for copy in copies:
            _delete(copy)


def _prefix() -> str:
    return f"pytorch_memlab_dry_run_{os.getpid()}_"


def _delete(copy: str) -> None:
    """Delete a copy; a forked process leaves those of its parent alone."""
    if os.path.basename(copy).startswith(_prefix()):
        _unlink(copy)


def resolved(path: Any) -> str:
    """The path of a file that a program names, without links."""
    return os.path.realpath(os.fsdecode(os.fspath(path)))
