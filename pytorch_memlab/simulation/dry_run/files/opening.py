"""``open`` and ``io.FileIO`` in a dry run; Note [Overlay]."""

from __future__ import annotations

import builtins
import io
import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from typing import Any

from ...._common.frames.traceback_frames import passes_on
from ...._common.patching.patches import Patches
from .layers import path_of_descriptor
from .marks import MARK, is_marked
from .overlay import Overlay

plain_open = io.open
PlainFileIO = io.FileIO
_LAST_STANDARD = 2  # the descriptor of standard error
_INNER = ("raw", "buffer", "file", "fileobj", "myfileobj", "fp", "_fp", "_fileobj", "f", "stream")
"""Attributes under which a file object has the one that it writes to."""


class _KindOfFile(type(PlainFileIO)):  # type: ignore[misc]
    """Files that were opened before, or by C, are files too."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, PlainFileIO)


class WatchedFile(PlainFileIO, metaclass=_KindOfFile):
    """A file of the overlay, or one that is moved there once data without values is written."""

    overlay: Overlay

    def __init__(
        self, file: Any, mode: str = "r", closefd: bool = True, opener: Any = None
    ) -> None:
        self._tail = b""
        self._process = os.getpid()
        self._is_watched = False
        overlay = self.overlay
        if isinstance(file, int) or opener is not None or not overlay.is_on:
            super().__init__(file, mode, closefd, opener)
            self._is_watched = overlay.is_on and self.writable() and _is_own(overlay, self)
            return
        if not any(sign in mode for sign in "wax+"):
            super().__init__(overlay.to_read(file), mode, closefd)
        else:
            lacks_values = overlay.is_in_kept_folder(file)
            with overlay.written(file, **_intent(mode), lacks_values=lacks_values) as target:
                super().__init__(target, mode, closefd)
            self._is_watched = not lacks_values
        self.name = file

    def write(self, data: Any) -> int:
        """Write, and look for the mark of tensors without values."""
        if self._is_watched:
            seen = self._tail + bytes(data)
            if MARK in seen:
                self.divert()
            self._tail = seen[1 - len(MARK) :]
        return super().write(data)

    def divert(self) -> None:
        """Write no file on the disk from now on."""
        if self._is_watched:
            self._is_watched = False
            name = None if isinstance(self.name, int) else self.name
            self.overlay.divert(self.fileno(), name)

    def close(self) -> None:
        """Close it; what was written through its descriptor is seen now."""
        if not self.closed and self._is_watched and os.getpid() == self._process:
            path = self.overlay.path_of(self.fileno())
            real = None if path is None else self.overlay.real_of(path)
            if real is not None and self.overlay.is_marked_file(real):
                self.divert()
        super().close()


def _is_own(overlay: Overlay, file: Any) -> bool:
    path = path_of_descriptor(file.fileno())
    return path is not None and overlay.is_own(path)


def _intent(mode: str) -> dict[str, bool]:
    return {
        "creates": "r" not in mode,
        "truncates": "w" in mode,
        "exclusive": "x" in mode,
    }


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
    """Leave room for data without values in a watched file, which is not on the disk then."""
    watched = watched_file(file)
    if watched is None:
        return None
    file.flush()
    watched.divert()
    file.seek(nbytes, os.SEEK_CUR)
    watched.truncate(file.tell())
    return nbytes


def watched_file(file: Any) -> WatchedFile | None:
    """The watched file that a file object writes to, whatever lies between the two."""
    seen = set()
    while file is not None and id(file) not in seen:
        if type(file) is WatchedFile:
            return file
        seen.add(id(file))
        inner = (getattr(file, name, None) for name in _INNER)
        file = next((layer for layer in inner if hasattr(layer, "write")), None)
    return None


def opener(overlay: Overlay) -> Callable[..., Any]:
    """A function that stands for ``open``."""

    @wraps(plain_open)
    @passes_on
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
        is_descriptor = isinstance(file, int)
        if not overlay.is_on or (is_descriptor and ("b" not in mode or file <= _LAST_STANDARD)):
            return plain_open(file, mode, buffering, *others)
        if not any(sign in mode for sign in "wax+"):
            if opener is not None or is_descriptor:
                return plain_open(file, mode, buffering, *others)
            target = overlay.to_read(file)
            return _named(plain_open(target, mode, buffering, *others), target, file)
        if "b" in mode and others[:3] == (None, None, None):
            return _watched(file, mode.replace("b", ""), buffering, closefd, opener)
        if opener is not None:
            return plain_open(file, mode, buffering, *others)
        # A mistake in an argument is told before a file is made.
        _check_arguments(mode, buffering, encoding, errors, newline)
        with ExitStack() as exits:
            target = exits.enter_context(overlay.written(file, **_intent(mode)))
            return _named(plain_open(target, mode, buffering, *others), target, file)

    return open


def _check_arguments(
    mode: str, buffering: int, encoding: str | None, errors: str | None, newline: str | None
) -> None:
    plain_open(os.devnull, mode.replace("x", "w"), buffering, encoding, errors, newline).close()


def _watched(file: Any, mode: str, buffering: int, closefd: bool, opener: Any) -> Any:
    raw = WatchedFile(file, mode, closefd, opener)
    if buffering == 0:
        return raw
    size = buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE
    kind = _WatchedRandom if "+" in mode else _WatchedWriter
    try:
        return kind(raw, size)
    except BaseException:
        raw.close()
        raise


def _named(opened: Any, target: Any, file: Any) -> Any:
    """A file object with the path that the program gave."""
    if target is not file:
        raw = getattr(opened, "buffer", opened)
        raw = getattr(raw, "raw", raw)
        raw.name = file
    return opened


def install(overlay: Overlay, patches: Patches) -> None:
    opens = opener(overlay)
    patches.set(builtins, "open", opens)
    patches.set(io, "open", opens)
    WatchedFile.overlay = overlay
    patches.set(io, "FileIO", WatchedFile)
