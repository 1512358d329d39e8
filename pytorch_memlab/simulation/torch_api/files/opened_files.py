"""``open`` and the functions of ``os`` that move files or look for them, in a dry run.

See Note [Files without values].
"""

from __future__ import annotations

import builtins
import glob
import io
import os
import pathlib
import shutil
import stat
from collections.abc import Callable
from functools import partial
from typing import Any

from typing_extensions import Self

from ...._common.after_import import AfterImport
from ...._common.patches import Patches
from ...machine.kept_files import MARK, KeptFiles, resolved

_open = io.open
_scandir = os.scandir
_stat = os.stat
_unlink = os.unlink
_LOOKED_AT = 65_536
_INNER = ("raw", "buffer", "file", "fileobj", "myfileobj", "fp", "_fp", "_fileobj", "f", "stream")
"""Attributes under which a file object has the one that it writes to."""
_OF_ONE_PATH = ("access", "chmod", "listxattr", "stat", "utime")
_SETS_OF_FUNCTIONS = ("supports_dir_fd", "supports_fd", "supports_follow_symlinks")
"""What functions of ``os`` can do: ``shutil`` looks for them there."""
_COMPRESSING = (
    ("gzip", "GzipFile"),
    ("bz2", "BZ2File"),
    ("lzma", "LZMAFile"),
    ("zipfile", "_ZipWriteFile"),
)


class WithoutValues:
    """Base of arrays and bytes that come from tensors without values."""


def is_marked(data: Any) -> bool:
    """True if an array, its bytes or a view of them is known to have no values."""
    return isinstance(data.obj if isinstance(data, memoryview) else data, WithoutValues)


class WatchedFile(io.FileIO):
    """A file that a program overwrites; it stays as it was if what is written has no values.

    A file that holds something is written when this closes, from a copy; until then it stays.
    """

    def __init__(self, path: Any, mode: str, kept: KeptFiles) -> None:
        self._kept = kept
        self._path = path
        self._process = os.getpid()
        self._existed = is_file(path)
        self._old: Any = None
        self._copy: str | None = None
        self._tail = b""
        self.lacks_values = kept.is_in_kept_folder(path)
        if self._existed and _stat(path).st_size:
            self._old = _open(path, "r+b", buffering=0)
            self._copy = kept.new_copy()
        super().__init__(path if self._copy is None else self._copy, mode)
        self.name = path

    def write(self, data: Any) -> int:
        """Write, and look for the mark of tensors without values."""
        if not self.lacks_values:
            seen = self._tail + bytes(data)
            self.lacks_values = MARK in seen
            self._tail = seen[1 - len(MARK) :]
        return super().write(data)

    def close(self) -> None:
        """Close it; now the file gets what was written, or stays as it was."""
        if self.closed:
            return
        super().close()
        if os.getpid() != self._process:
            return
        # What was written through its descriptor was not seen.
        if self.lacks_values or _is_marked_file(self._copy or self._path):
            self._keep()
        else:
            self._write_through()
        if self._old is not None:
            self._old.close()

    def _keep(self) -> None:
        copy = self._copy
        if copy is None:
            copy = _copied(self._path, self._kept)
            if self._existed:
                os.truncate(self._path, 0)
            else:
                _unlink(self._path)
        self._kept.keep(self._path, copy)

    def _write_through(self) -> None:
        self._kept.drop(self._path)
        if self._copy is not None:
            self._old.truncate(0)
            with _open(self._copy, "rb") as new:
                shutil.copyfileobj(new, self._old)
            _unlink(self._copy)


class _Entry(os.PathLike[str]):
    """A kept file in the list of a folder, as ``os.scandir`` gives it."""

    def __init__(self, folder: Any, name: str) -> None:
        self.name = name
        self.path = os.path.join(folder, name)

    def __fspath__(self) -> str:
        return self.path

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return True

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return False

    def is_symlink(self) -> bool:
        return False

    is_junction = is_symlink

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self.path)

    def inode(self) -> int:
        return self.stat().st_ino


class _Entries:
    """The entries of a folder on the disk, and others."""

    def __init__(self, on_disk: Any, others: list[_Entry]) -> None:
        self._on_disk = on_disk
        self._others = others

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        for entry in self._on_disk:
            self._others = [one for one in self._others if one.name != entry.name]
            return entry
        if self._others:
            return self._others.pop(0)
        raise StopIteration

    def close(self) -> None:
        self._on_disk.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Watched:
    """Notices arrays without values among what is written."""

    def write(self, data: Any) -> int:
        hole = leave_room(self, memoryview(data).nbytes) if is_marked(data) else None
        return super().write(data) if hole is None else hole  # type: ignore[misc]


class _WatchedWriter(_Watched, io.BufferedWriter):
    pass


class _WatchedRandom(_Watched, io.BufferedRandom):
    pass


def leave_room(file: Any, nbytes: int) -> int | None:
    """Leave room for data without values in a watched file, which is not written from now on."""
    watched = watched_file(file)
    if watched is None:
        return None
    watched.lacks_values = True
    file.seek(nbytes, os.SEEK_CUR)
    watched.truncate(file.tell())
    return nbytes


def watched_file(file: Any) -> WatchedFile | None:
    """The watched file that a file object writes to, whatever lies between the two."""
    seen = set()
    while file is not None and id(file) not in seen:
        if isinstance(file, WatchedFile):
            return file
        seen.add(id(file))
        inner = (getattr(file, name, None) for name in _INNER)
        file = next((one for one in inner if hasattr(one, "write")), None)
    return None


def install(kept: KeptFiles, imports: AfterImport, patches: Patches) -> None:
    open_ = _opener(kept)
    patches.set(builtins, "open", open_)
    patches.set(io, "open", open_)
    for module, name in _COMPRESSING:
        imports.call(module, partial(_watch_compressed, name, patches))
    _install_moves(kept, patches)
    accessor = getattr(pathlib, "_NormalAccessor", None)  # Python 3.10 has its own references
    if accessor is not None:
        for name in ("chmod", "link", "listdir", "rename", "replace", "scandir", "stat", "unlink"):
            patches.set(accessor, name, staticmethod(getattr(os, name)))
        patches.set(accessor, "open", staticmethod(open_))
    globber = getattr(glob, "_StringGlobber", None)  # and Python 3.13 one
    if getattr(globber, "scandir", None) is _scandir:
        patches.set(globber, "scandir", staticmethod(os.scandir))


def _install_moves(kept: KeptFiles, patches: Patches) -> None:
    @patches.around(os, "rename", "replace")
    def moved(move: Callable[..., Any], src: Any, dst: Any, **options: Any) -> None:
        if options:  # names within folders that are open
            move(src, dst, **options)
        elif kept.copy_of(src) is not None:
            kept.move(src, dst)
        elif os.path.isdir(src):
            before = resolved(src)
            move(src, dst)
            kept.move_folder(before, resolved(dst))
        elif kept.is_in_kept_folder(dst) or _is_marked_file(src):
            copy = _copied(src, kept)
            _unlink(src)
            kept.keep(dst, copy)
        else:
            move(src, dst)
            kept.drop(dst)

    @patches.around(os, "remove", "unlink")
    def removed(remove: Callable[..., Any], path: Any, **options: Any) -> None:
        if options:
            remove(path, **options)
        elif kept.copy_of(path) is not None:
            kept.drop(path)
        elif not kept.is_in_kept_folder(path):
            remove(path)

    @patches.around(shutil, "rmtree")
    def folder_removed(remove: Callable[..., Any], path: Any, *args: Any, **options: Any) -> None:
        folder = resolved(path)
        remove(path, *args, **options)
        if not os.path.exists(folder):
            kept.drop_folder(folder)

    def copied(copy: Callable[..., Any], src: Any, dst: Any, **options: Any) -> Any:
        source = kept.copy_of(src)
        if source is None:
            return copy(src, dst, **options)
        if os.path.isdir(dst):
            dst = os.path.join(dst, os.path.basename(src))
        kept.keep(dst, _copied(source, kept))
        return dst

    patches.around(shutil, "copyfile", "copy", "copy2")(copied)
    patches.around(os, "link")(copied)

    @patches.around(os, "listdir")
    def names(listdir: Callable[..., Any], path: Any = ".") -> Any:
        found = listdir(path)
        return found + [name for name in kept.names_in(path) if name not in found]

    @patches.around(os, "scandir")
    def entries(scandir: Callable[..., Any], path: Any = ".") -> Any:
        others = [_Entry(path, name) for name in kept.names_in(path)]
        return _Entries(scandir(path), others) if others else scandir(path)

    @patches.around(os, *filter(os.__dict__.__contains__, _OF_ONE_PATH))
    def asked(ask: Callable[..., Any], path: Any, *args: Any, **options: Any) -> Any:
        copy = None if options.get("dir_fd") is not None else kept.copy_of(path)
        is_of_link = not options.get("follow_symlinks", True) and os.path.lexists(path)
        return ask(path if copy is None or is_of_link else copy, *args, **options)

    for name in _SETS_OF_FUNCTIONS:
        patches.set(os, name, {getattr(os, one.__name__) for one in getattr(os, name)})


def _watch_compressed(name: str, patches: Patches, module: Any) -> None:
    """Look for the mark before it is compressed."""

    @patches.around(getattr(module, name), "write")
    def write(write_compressed: Callable[..., Any], self: Any, data: Any) -> Any:
        if is_marked(data) or MARK in bytes(data):
            watched = watched_file(self)
            if watched is not None:
                watched.lacks_values = True
        return write_compressed(self, data)

    if hasattr(module, "_builtin_open"):
        patches.set(module, "_builtin_open", builtins.open)


def _opener(kept: KeptFiles) -> Callable[..., Any]:
    def open(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        others = (encoding, errors, newline, closefd, opener)
        if isinstance(file, int) or opener is not None:
            return _open(file, mode, buffering, *others)
        overwrites = "w" in mode or "x" in mode
        if not overwrites:
            return _open(kept.copy_of(file) or file, mode, buffering, *others)
        is_watched = "b" in mode and (os.path.isfile(file) or not os.path.exists(file))
        if not is_watched or others != (None, None, None, True, None):
            opened = _open(file, mode, buffering, *others)
            kept.drop(file)
            return opened
        raw = WatchedFile(file, mode.replace("b", ""), kept)
        if buffering == 0:
            return raw
        size = buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE
        return _WatchedRandom(raw, size) if "+" in mode else _WatchedWriter(raw, size)

    return open


def is_file(path: Any) -> bool:
    """True if there is a file on the disk, whatever is kept."""
    try:
        return stat.S_ISREG(_stat(path).st_mode)
    except (OSError, ValueError):
        return False


def _is_marked_file(path: Any) -> bool:
    """True if a file that was written unwatched holds tensors without values."""
    if not is_file(path):
        return False
    with _open(path, "rb") as file:
        return MARK in file.read(_LOOKED_AT)


def _copied(source: Any, kept: KeptFiles) -> str:
    target = kept.new_copy()
    with _open(source, "rb") as old, _open(target, "wb") as new:
        shutil.copyfileobj(old, new)
    return target
