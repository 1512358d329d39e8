"""Files that are checked before there is anything to write, and written whole or not at all."""

from __future__ import annotations

import os
import secrets
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePath
from typing import BinaryIO

from ...errors import UsageError
from .real_files import on_disk


def check_writable(path: str | os.PathLike[str]) -> None:
    """Refuse a path that cannot be written, as far as that is known before it is."""
    name = os.fspath(path)
    with on_disk():
        problem = _obstacle(name) if name else _NO_RIGHT
    if problem:
        to = f", a link to {os.path.realpath(name)}" if os.path.islink(name) else ""
        raise UsageError(f"cannot write {name or repr(name)}{to}: {problem}")


_NO_RIGHT = "no such folder, or no right to write there"


def _obstacle(path: str) -> str:
    """Why a file cannot be written; empty if it can, as far as that is known."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        # A new file, or that to which a link leads.
        is_possible = not path.endswith(os.sep) and _takes_files(
            os.path.dirname(os.path.realpath(path))
        )
    except OSError as error:  # such as links in a circle
        return error.strerror or str(error)
    else:
        is_possible = not stat.S_ISDIR(mode) and os.access(path, os.W_OK)
    return "" if is_possible else _NO_RIGHT


def _takes_files(folder: str) -> bool:
    """True if a file can be made in a folder, and removed again: rights alone do not tell."""
    probe = os.path.join(folder, f".{secrets.token_hex(4)}.tmp")
    try:
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        os.unlink(probe)
    except OSError:
        return False
    return True


Content = str | bytes | Callable[[BinaryIO], object]
"""Text, bytes, or what writes them."""


def write_file(path: str | os.PathLike[str], content: Content, *, called: str = "") -> None:
    """Write a file so that at every moment there is the older file or all of the new one."""
    # The content goes into a file beside it, which then takes its place. The file keeps its
    # permissions and, where this process may, its owner. A symbolic link stays one. What is no
    # regular file, such as ``/dev/stdout``, and a file in a folder where none can be made, is
    # written in place.
    try:
        with on_disk():
            _write(path, _writer(content))
    except OSError as error:
        raise UsageError(f"cannot write {called or os.fspath(path)}: {error.strerror}") from error


def _writer(content: Content) -> Callable[[BinaryIO], object]:
    if callable(content):
        return content
    data = content if isinstance(content, bytes) else _encoded(content)
    return lambda file: file.write(data)


def _encoded(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a character that no file name and no source has
        return text.encode("utf-8", "replace")


def _write(path: str | os.PathLike[str], write: Callable[[BinaryIO], object]) -> None:
    target = os.path.realpath(path)
    before = None
    with suppress(FileNotFoundError):
        before = os.stat(target)
    if before is not None and not stat.S_ISREG(before.st_mode):
        _write_in_place(target, write)
        return
    folder, name = os.path.split(target)
    beside = os.path.join(folder, f".{name[:40]}.{secrets.token_hex(4)}.tmp")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except PermissionError:
        if before is None:
            raise
        _write_in_place(target, write)
        return
    try:
        with open(descriptor, "wb") as file:
            write(file)
            file.flush()
            os.fsync(descriptor)
        if before is not None:
            _take_over(beside, before)
        os.replace(beside, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(beside)
        raise


def _take_over(path: str, other: os.stat_result) -> None:
    """Give a file the owner and the permissions of another one."""
    if hasattr(os, "chown"):
        with suppress(PermissionError):
            os.chown(path, other.st_uid, other.st_gid)
    os.chmod(path, stat.S_IMODE(other.st_mode))


def _write_in_place(path: str, write: Callable[[BinaryIO], object]) -> None:
    with open(path, "wb") as file:
        write(file)


class CheckedFile:
    """A file that gets what a run found, also if the program changes its folder in between."""

    # With ``keeps_older`` it is an error that there is such a file. One of another process that is
    # there at the end stays as well: the name of this one then has the number of the process.

    def __init__(self, name: str, *, keeps_older: bool = False) -> None:
        check_writable(name)
        self._name = name
        self._path = Path(name).absolute()
        self._keeps_older = keeps_older
        self.ending = PurePath(name).suffix.lower()
        if self._would_overwrite():
            raise UsageError(
                f"{name} is there already: --force (force=True) overwrites it, and {{pid}} in the "
                "name gives every run its own file"
            )

    def write(self, content: Content) -> str:
        path, name = self._path, self._name
        if self._would_overwrite():
            path = path.with_name(f"{path.stem}.{os.getpid()}{path.suffix}")
            name = str(PurePath(name).with_name(path.name))
        write_file(path, content, called=name)
        return name

    def write_or_tell(self, make: Callable[[], Content]) -> str | None:
        """Write the file, or say on standard error why it cannot be written."""
        try:
            return self.write(make())
        except UsageError as error:
            print(error, file=sys.stderr)
            return None

    def _would_overwrite(self) -> bool:
        path = self._path
        with on_disk():
            return self._keeps_older and path.is_file() and path.stat().st_size > 0
