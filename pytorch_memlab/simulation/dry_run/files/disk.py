"""Work on the disk itself, with the functions of ``os`` as they are without an overlay."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from contextlib import suppress
from typing import Final

CLOEXEC: Final = getattr(os, "O_CLOEXEC", 0)
_stat, _lstat, _listdir = os.stat, os.lstat, os.listdir
_mkdir, _rmdir, _unlink, _rename = os.mkdir, os.rmdir, os.unlink, os.rename
_readlink, _symlink, _chmod, _utime, _open_fd = os.readlink, os.symlink, os.chmod, os.utime, os.open
_dup2, _close, _lseek = os.dup2, os.close, os.lseek
_open = open


def mode_of(real: str | None, *, follow: bool = True) -> int | None:
    """The mode of what is at a real place; None if nothing is."""
    if real is None:
        return None
    try:
        return (_stat if follow else _lstat)(real).st_mode
    except (OSError, ValueError):
        return None


def redirect(descriptor: int, path: str) -> None:
    """Let a descriptor be of another file, at the same position."""
    import fcntl  # there is none on Windows

    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    other = _open_fd(path, flags | CLOEXEC)
    _lseek(other, _lseek(descriptor, 0, os.SEEK_CUR), os.SEEK_SET)
    _dup2(other, descriptor, os.get_inheritable(descriptor))
    _close(other)


def copy_file(source: str, target: str) -> None:
    """Copy a file with its mode and its times."""
    with _open(source, "rb") as old, _open(target, "wb") as new:
        shutil.copyfileobj(old, new, 1 << 20)
    status = _stat(source)
    _chmod(target, stat.S_IMODE(status.st_mode))
    _utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def move(source: str, target: str) -> None:
    """Rename, to another file system too."""
    try:
        _rename(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _copy_tree(source, target)
        remove_tree(source)


def _copy_tree(source: str, target: str) -> None:
    mode = _lstat(source).st_mode
    if stat.S_ISLNK(mode):
        _symlink(_readlink(source), target)
    elif stat.S_ISDIR(mode):
        _mkdir(target)
        for name in _listdir(source):
            _copy_tree(f"{source}/{name}", f"{target}/{name}")
        _chmod(target, stat.S_IMODE(mode))
    else:
        copy_file(source, target)


def remove_tree(path: str) -> None:
    with suppress(FileNotFoundError):
        if stat.S_ISDIR(_lstat(path).st_mode):
            for name in _listdir(path):
                remove_tree(f"{path}/{name}")
            _rmdir(path)
        else:
            _unlink(path)
