"""The places that the paths of a dry run lead to; Note [Overlay]."""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
import threading
import weakref
from typing import Any, Final, NamedTuple

_stat, _lstat, _readlink, _getcwd = os.stat, os.lstat, os.readlink, os.getcwd
_open, _read, _write, _close, _lseek = os.open, os.read, os.write, os.close, os.lseek

_CLOEXEC: Final = getattr(os, "O_CLOEXEC", 0)
_MOST_LINKS: Final = 40
_SPECIAL: Final = ("dev", "proc", "sys")
"""Folders of the system below ``/``, whose files are no files."""
_F_GETPATH: Final = 50  # fcntl of macOS
GONE: Final = ""
"""Stands for the place of what the program has removed."""

PathLike = str | bytes | os.PathLike[Any]


class LayeredPath(NamedTuple):
    """A path without links, as the program has it, and where it leads to."""

    logical: str | None  # None for files of the system, which are as they are
    real: str | None  # None if the program has removed it
    is_moved: bool = False  # True if the system alone would find another place


class Layers:
    """The places of all paths, as the journal in a folder tells it."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.is_open = True
        self.refuses_commands = False
        self.keeps_new = False  # new files and folders go to the folder too
        self.is_told = False  # the first path was named on standard error
        self.moved: dict[str, str] = {}
        """Real places of paths that have another than their own, or ``GONE``."""
        self.made: set[str] = set()
        """Real paths that this run made; what is below them is its own too."""
        self.lacking: set[str] = set()
        """Real places of files that hold data without values."""
        self.named: dict[str, tuple[str, str]] = {}
        """Paths that are kept from being changed: the name in the program, and what it did."""
        self.commands: dict[str, bool] = {}
        """Commands that the overlay does not hold back, and whether they were refused."""
        self.checkpoints: set[str] = set()
        """Folders of distributed checkpoints of which no file is written."""
        self._below: dict[str, set[str]] = {}
        self._journal = os.path.join(folder, "journal")
        self._known_size = 0
        self._working_folder = ("", 0, "")
        self.lock = threading.RLock()
        _all.add(self)

    # The journal

    def is_changed(self) -> bool:
        """True if some path leads elsewhere: everything else needs no look at the layers."""
        if not self.is_open:
            return False
        self.read_journal()
        return bool(self.moved)

    def read_journal(self) -> None:
        """Take over what this and other processes have added."""
        try:
            if _stat(self._journal).st_size == self._known_size:
                return
        except OSError:
            return
        with self.lock:
            descriptor = _open(self._journal, os.O_RDONLY | _CLOEXEC)
            try:
                _lseek(descriptor, self._known_size, os.SEEK_SET)
                data = b"".join(iter(lambda: _read(descriptor, 1 << 20), b""))
            finally:
                _close(descriptor)
            for line in data.splitlines():
                event, *args = json.loads(line)
                getattr(self, f"_on_{event}")(*args)
            self._known_size += len(data)

    def tell(self, event: str, *args: Any) -> None:
        """Add an event to the journal."""
        line = json.dumps([event, *args]).encode() + b"\n"
        with self.lock:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | _CLOEXEC
            descriptor = _open(self._journal, flags, 0o600)
            try:
                _write(descriptor, line)
            finally:
                _close(descriptor)
            self.read_journal()

    def _on_at(self, path: str, real: str) -> None:
        self.moved[path] = real
        self._below.setdefault(os.path.dirname(path), set()).add(path)

    def _on_drop(self, path: str) -> None:
        if self.moved.pop(path, None) is not None:
            self._below[os.path.dirname(path)].discard(path)

    def _on_drop_below(self, path: str) -> None:
        for below in self.all_below(path):
            self._on_drop(below)

    def _on_carry(self, source: str, target: str) -> None:
        """A folder was renamed: what is below it goes along."""
        self._on_drop_below(target)
        for path in self.all_below(source):
            real = self.moved[path]
            self._on_drop(path)
            self._on_at(target + path[len(source) :], real)
        for path in [path for path in self.named if path.startswith(source + "/")]:
            name, what = self.named.pop(path)
            moved = name.replace(os.path.basename(source), os.path.basename(target), 1)
            self.named[target + path[len(source) :]] = (moved, what)

    def _on_made(self, real: str) -> None:
        self.made.add(real)

    def _on_unmade(self, real: str) -> None:
        self.made.discard(real)
        self.made -= {path for path in self.made if path.startswith(real + "/")}

    def _on_lacking(self, real: str, lacks: bool) -> None:
        (self.lacking.add if lacks else self.lacking.discard)(real)

    def _on_named(self, path: str, name: str, what: str) -> None:
        self.named[path] = (name, what)

    def _on_unnamed(self, path: str) -> None:
        self.named.pop(path, None)

    def _on_checkpoint(self, path: str) -> None:
        self.checkpoints.add(path)

    def _on_command(self, name: str, refused: bool) -> None:
        self.commands.setdefault(name, refused)

    def _on_told(self) -> None:
        self.is_told = True

    def _on_refuse_commands(self) -> None:
        self.refuses_commands = True

    def _on_keep_new(self) -> None:
        self.keeps_new = True

    # Places

    def locate(self, path: str, *, follow: bool = True) -> LayeredPath:
        """The place of a path, links followed as the system does it."""
        if not path:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        waiting = self._parts(path)
        logical = ""
        real: str | None = ""
        links = 0
        is_moved = False
        while waiting:
            name = waiting.pop()
            if not name or name == ".":
                continue
            if name == "..":
                logical = logical.rpartition("/")[0]
                real = self.real_of(logical)
                continue
            if not logical and name in _SPECIAL and not _is_shared_memory(name, waiting):
                rest = "/".join(reversed(waiting))
                return LayeredPath(None, f"/{name}/{rest}" if rest else f"/{name}")
            logical = f"{logical}/{name}"
            moved = self.moved.get(logical)
            if moved is not None:
                is_moved = True
                real = moved or None
            elif real is not None:
                real = f"{real}/{name}"
            if real is None or not (follow or any(waiting)) or not _is_link(real):
                continue
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            target = _readlink(real)
            logical = "" if target.startswith("/") else logical.rpartition("/")[0]
            real = self.real_of(logical)
            waiting.extend(reversed(target.split("/")))
        return LayeredPath(logical or "/", "/" if real == "" else real, is_moved)

    def _parts(self, path: str) -> list[str]:
        whole = path if path.startswith("/") else f"{self.working_folder()}/{path}"
        return list(reversed(whole.split("/")))

    def real_of(self, logical: str) -> str | None:
        """The place of a path that has no links."""
        head, tail = logical, ""
        while head:
            moved = self.moved.get(head)
            if moved is not None:
                return moved + tail if moved else None
            head, _, name = head.rpartition("/")
            tail = f"/{name}{tail}"
        return logical

    def below_itself(self, logical: str) -> str | None:
        """The place that a path would have if it were not moved itself."""
        parent, _, name = logical.rpartition("/")
        real = self.real_of(parent)
        return None if real is None else f"{real}/{name}"

    def logical_of(self, real: str) -> str:
        """The path of a place, as the program has it."""
        for path, moved in self.moved.copy().items():  # another thread may change it
            if moved and (real == moved or real.startswith(moved + "/")):
                return path + real[len(moved) :]
        return real

    def working_folder(self) -> str:
        """The folder of this process, as the program has it."""
        real = _getcwd()
        before, size, logical = self._working_folder
        if (before, size) != (real, self._known_size):
            logical = self.logical_of(real)
            self._working_folder = (real, self._known_size, logical)
        return logical

    def path_of(self, descriptor: int) -> str | None:
        """The path of an open file as the program has it; None if it has none."""
        real = path_of_descriptor(descriptor)
        return None if real is None else self.logical_of(real)

    def is_own(self, real: str) -> bool:
        """True if this run made what is at a real place."""
        if real.startswith(self.folder + "/"):
            return True
        while real:
            if real in self.made:
                return True
            real = real.rpartition("/")[0]
        return False

    def children(self, logical: str) -> set[str]:
        """The paths in a folder that have another place than their own."""
        return self._below.get(logical, set()).copy()

    def all_below(self, logical: str) -> list[str]:
        return [path for path in self.moved.copy() if path.startswith(logical + "/")]

    def is_used_elsewhere(self, real: str, logical: str) -> bool:
        """True if a second name leads to the same place."""
        return any(path != logical and place == real for path, place in self.moved.copy().items())


def path_of_descriptor(descriptor: int) -> str | None:
    """The path of an open file; None if it has none."""
    try:
        if sys.platform == "darwin":
            import fcntl

            answer = fcntl.fcntl(descriptor, _F_GETPATH, bytes(1024))
            real = os.fsdecode(answer.rstrip(b"\0"))
        else:
            real = _readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return None
    return None if not real.startswith("/") or real.endswith(" (deleted)") else real


def _is_shared_memory(name: str, waiting: list[str]) -> bool:
    return name == "dev" and waiting[-1:] == ["shm"]


def _is_link(real: str) -> bool:
    try:
        return stat.S_ISLNK(_lstat(real).st_mode)
    except OSError:
        return False


_all: weakref.WeakSet[Layers] = weakref.WeakSet()


def _renew_locks() -> None:
    """A fork has the locks that other threads of its parent held."""
    for layers in _all:
        layers.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
