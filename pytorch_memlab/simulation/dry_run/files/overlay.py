"""The overlay decides where each intent of a dry run goes; Note [Overlay]."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from ...._common.process.real_files import is_direct, on_disk
from ...._common.process.working_folder import new_folder
from .disk import CLOEXEC, copy_file, mode_of, move, redirect, remove_tree
from .layers import GONE, LayeredPath, path_of_descriptor
from .marks import MARK
from .reported_paths import REMOVED, RENAMED, ReportedPaths

Result = TypeVar("Result")

VARIABLE: Final = "PYTORCH_MEMLAB_OVERLAY"
_LOOKED_AT: Final = 65_536
_MOST_OF_DISK: Final = 0.5  # of what is free in the folder for temporary files
_MOST_COPIED: Final = 64 * 2**20  # bytes of a file whose mode or times change
_CHECKPOINT_ENDINGS: Final = (".distcp", ".metadata", ".metadata.tmp")
"""Of the files that PyTorch writes for a distributed checkpoint."""
_stat, _access, _listdir = os.stat, os.access, os.listdir
_disk_usage = shutil.disk_usage
_mkdir, _rmdir, _unlink, _chmod = os.mkdir, os.rmdir, os.unlink, os.chmod
_open_fd, _close, _fstat = os.open, os.close, os.fstat
_open = open


class Overlay(ReportedPaths):
    """The files of a dry run."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self._numbers = itertools.count()
        self._owner = os.getpid()
        self.is_shared = False  # another process removes the copies

    @property
    def is_on(self) -> bool:
        """True if paths are translated now, in this thread."""
        return self.is_open and not is_direct()

    # Reading

    def to_read(self, path: Any, *, follow: bool = True) -> Any:
        """The path to give a function that reads one."""
        if not self.is_on or not self.is_changed() or not _is_path(path):
            return path
        place = self.locate(os.fsdecode(path), follow=follow)
        if place.real is None:
            raise _error(errno.ENOENT, path)
        if place.logical is None or not place.is_moved:
            return path
        return os.fsencode(place.real) if isinstance(path, bytes) else place.real

    def place(self, path: Any, *, follow: bool = True) -> LayeredPath:
        """The place that a path leads to, with the latest of the journal."""
        self.read_journal()
        return self.locate(os.fsdecode(path), follow=follow)

    def names(self, logical: str, real: str) -> Iterator[str]:
        """The names in a folder: first those that are on the disk."""
        others = {os.path.basename(path): path for path in sorted(self.children(logical))}
        for name in _listdir(real):
            moved = others.pop(name, None)
            if moved is None or self.moved.get(moved):
                yield name
        yield from (name for name, path in others.items() if self.moved.get(path))

    # Writing

    @contextmanager
    def written(
        self,
        path: Any,
        *,
        creates: bool = True,
        truncates: bool = True,
        exclusive: bool = False,
        follow: bool = True,
        lacks_values: bool = False,
        always_kept: bool = False,
    ) -> Iterator[Any]:
        """The file to write for a path."""
        # An older file is not written but a copy of it; a new one with ``lacks_values`` goes to the
        # folder of the overlay too, and with ``always_kept``, where its content cannot be seen.
        if not self.is_on or not _is_path(path):
            yield path
            return
        place = self.place(path, follow=follow and not exclusive)
        logical, real, is_moved = place
        if logical is None:
            yield path
            return
        mode = mode_of(real)
        if mode is not None and real is not None:
            if exclusive or not stat.S_ISREG(mode):
                yield real if is_moved else path
                return
            target = self._to_overwrite(
                path, place, truncates=truncates or lacks_values, kept=lacks_values or always_kept
            )
            if lacks_values:
                self.name(logical, path)
            if lacks_values or (truncates and target in self.lacking):
                self.tell("lacking", target, lacks_values)
            yield target if is_moved or target != logical else path
            return
        if not creates:
            raise _error(errno.ENOENT, path)
        target = self._new(logical, path, kept=lacks_values or always_kept)
        yield target if is_moved or target != logical else path
        if mode_of(target) is not None:
            self._add_new(logical, target)
            if lacks_values:
                self.tell("lacking", target, True)
                self.name(logical, path)

    def _to_overwrite(self, path: Any, place: LayeredPath, *, truncates: bool, kept: bool) -> str:
        """The file to write in place of one that is there."""
        logical, real, _ = place
        assert logical is not None
        assert real is not None
        if self.is_own(real) and not (kept and not real.startswith(self.folder + "/")):
            return real
        if not _access(real, os.W_OK):
            raise _error(errno.EACCES, path)
        copy = self._copy_of_lower(logical, real, empty=truncates)
        if self.is_own(real):  # made by this run, and now without values
            self._delete(real)
        else:
            self.name(logical, path, is_loud=_stat(real).st_size > 0)
        return copy

    def _copy_of_lower(self, logical: str, real: str, *, empty: bool) -> str:
        if not empty:
            self._check_room(real)
        copy = self.new_copy(logical)
        if empty:
            _close(_open_fd(copy, os.O_WRONLY | os.O_CREAT | CLOEXEC, 0o600))
            _chmod(copy, stat.S_IMODE(_stat(real).st_mode))
        else:
            copy_file(real, copy)
        self.tell("at", logical, copy)
        return copy

    def _check_room(self, real: str) -> None:
        """An error where a copy of a file would fill the folder for temporary files."""
        with on_disk():
            free = _disk_usage(self.folder).free
        if _stat(real).st_size > free * _MOST_OF_DISK:
            raise OSError(
                errno.ENOSPC,
                f"a dry run changes a copy of a file, and {self.folder} has no room for it (TMPDIR"
                " names another folder, --allow-writes changes the file)",
                real,
            )

    def _new(self, logical: str, path: Any, *, kept: bool = False) -> str:
        """The place where something new is made."""
        parent, name = os.path.split(logical)
        real_parent = self.real_of("" if parent == "/" else parent)
        mode = None if real_parent is None else mode_of(real_parent or "/")
        if mode is None or real_parent is None:
            raise _error(errno.ENOENT, path)
        if not stat.S_ISDIR(mode):
            raise _error(errno.ENOTDIR, path)
        plain = f"{real_parent}/{name}".replace("//", "/")
        if real_parent.startswith(self.folder + "/"):
            return plain
        if not kept and not self.keeps_new and logical == plain and logical not in self.moved:
            return plain
        if not _access(real_parent or "/", os.W_OK | os.X_OK):
            raise _error(errno.EACCES, path)
        return self.new_copy(logical)

    def _add_new(self, logical: str, real: str) -> None:
        """Take over what was made."""
        if real != logical:
            if self.real_of(logical) != real:
                self.tell("at", logical, real)
        elif not self.is_own(real):
            self.tell("made", real)

    def new_copy(self, logical: str) -> str:
        """A path in the folder of the overlay, with the same name."""
        folder = os.path.join(self.folder, f"{os.getpid()}-{next(self._numbers)}")
        _mkdir(folder)
        return os.path.join(folder, os.path.basename(logical))

    def make_new(self, make: Callable[[str], Result], path: Any) -> Result:
        """Make a folder, a link or a pipe."""
        logical, real, is_moved = self.place(path, follow=False)
        if logical is None:
            return make(path)
        if real is not None and mode_of(real, follow=False) is not None:
            raise _error(errno.EEXIST, path)
        target = self._new(logical, path)
        result = make(target if is_moved or target != logical else path)
        if target != logical:
            self.tell("drop_below", logical)
        self._add_new(logical, target)
        return result

    def changed(self, change: Callable[[Any], Result], path: Any, *, follow: bool = True) -> Any:
        """Change the mode, the owner, the times or the attributes of a path."""
        logical, real, is_moved = self.place(path, follow=follow)
        if logical is None:
            return change(path)
        mode = mode_of(real, follow=False)
        if real is None or mode is None:
            raise _error(errno.ENOENT, path)
        if self.is_own(real):
            return change(real if is_moved else path)
        if not stat.S_ISREG(mode) or _stat(real).st_size > _MOST_COPIED:
            return None  # a folder, a link and a large file stay as they are
        copy = self._copy_of_lower(logical, real, empty=False)
        self.name(logical, path)
        return change(copy)

    # Removing and renaming

    def removed(self, remove: Callable[[Any], object], path: Any) -> None:
        """Remove a file or a link."""
        logical, real, _ = self.place(path, follow=False)
        if logical is None:
            remove(path)
            return
        mode = None if real is None else mode_of(real, follow=False)
        if mode is None or real is None:
            raise _error(errno.ENOENT, path)
        if stat.S_ISDIR(mode):
            raise _error(errno.EISDIR, path)
        if stat.S_ISSOCK(mode):  # it is no file, and in the way of another one
            remove(real)
            return
        self._check_folder(logical, path)
        if self.is_own(real):
            if not self.is_used_elsewhere(real, logical):
                remove(real)
                self._forget_made(real)
            is_named = self.moved.get(logical) is not None and self._is_lower(logical)
            if not is_named:
                self.unname(logical)
            self._hide(logical)
            if is_named:
                self.name(logical, path, REMOVED)
            return
        self._hide(logical)
        self.name(logical, path, REMOVED)

    def folder_removed(self, remove: Callable[[Any], object], path: Any) -> None:
        """Remove an empty folder."""
        logical, real, _ = self.place(path, follow=False)
        if logical is None or real is None or not stat.S_ISDIR(mode_of(real, follow=False) or 0):
            if logical is not None and real is None:
                raise _error(errno.ENOENT, path)
            remove(path if logical is None or real == logical else real)
            return
        if next(self.names(logical, real), None) is not None:
            raise _error(errno.ENOTEMPTY, path)
        self._check_folder(logical, path)
        is_own = self.is_own(real)
        if is_own:
            remove(real)
            self._forget_made(real)
        was_lower = self._is_lower(logical)
        self.tell("drop_below", logical)
        self._hide(logical)
        if was_lower:
            for below in [key for key in self.named.copy() if key.startswith(logical + "/")]:
                self.unname(below)
            self.name(logical, path, REMOVED)

    def tree_removed(self, path: Any) -> bool:
        """Hide a folder with all that is in it; False if that has to go one by one."""
        logical, real, _ = self.place(path, follow=False)
        if logical is None or real is None or self.is_own(real):
            return False
        if not stat.S_ISDIR(mode_of(real, follow=False) or 0) or not self._is_lower(logical):
            return False
        if any(self.is_own_below(real)):
            return False
        self._check_folder(logical, path)
        self.tell("drop_below", logical)
        self._hide(logical)
        for below in [key for key in self.named.copy() if key.startswith(logical + "/")]:
            self.unname(below)
        self.name(logical, path, REMOVED)
        return True

    def is_own_below(self, real: str) -> Iterator[bool]:
        """True for everything below a folder that this run made for real."""
        return (True for path in self.made.copy() if path.startswith(real + "/"))

    def renamed(self, rename: Callable[[Any, Any], object], src: Any, dst: Any) -> None:
        """Rename a file, a link or a folder, and replace what had the name."""
        source, target = self.place(src, follow=False), self.place(dst, follow=False)
        if source.logical is None or target.logical is None:
            rename(self.to_read(src, follow=False), dst)
            return
        if self._is_nothing_to_rename(source, target, src, dst):
            return
        assert source.real is not None
        self._check_folder(source.logical, src)
        self._check_folder(target.logical, dst)
        is_own = self.is_own(source.real)
        # What has the name goes first; then it is as if there had never been anything.
        had_older = target.real is not None and mode_of(target.real, follow=False) is not None
        if had_older:
            self._replaced(target)
        kept = self._is_kept(source.real, dst)
        new = self._new(target.logical, dst, kept=kept or not is_own)
        was_lower = self._is_lower(source.logical)
        real = source.real
        if is_own and not self.is_used_elsewhere(real, source.logical):
            real = new
            move(source.real, new)
            self._carry_made(source.real, new)
        self.tell("carry", source.logical, target.logical)
        self._hide(source.logical)
        name = self.named.get(source.logical)
        self.unname(source.logical)
        if real != target.logical:
            self.tell("at", target.logical, real)
        if was_lower:
            self.name(source.logical, src, RENAMED)
        if self._is_lower(target.logical) or kept or (name is not None and real != target.logical):
            self.name(target.logical, dst)

    def _is_nothing_to_rename(
        self, source: LayeredPath, target: LayeredPath, src: Any, dst: Any
    ) -> bool:
        """True if both are one file; an error where the system has one."""
        mode = None if source.real is None else mode_of(source.real, follow=False)
        if mode is None:
            raise _error(errno.ENOENT, src, dst)
        if source.logical == target.logical:
            return True
        assert source.logical is not None
        assert target.logical is not None
        if target.logical.startswith(source.logical + "/"):
            raise _error(errno.EINVAL, src, dst)
        older = None if target.real is None else mode_of(target.real, follow=False)
        if older is not None and target.real is not None:
            if stat.S_ISDIR(older) and not stat.S_ISDIR(mode):
                raise _error(errno.EISDIR, src, dst)
            if stat.S_ISDIR(mode) and not stat.S_ISDIR(older):
                raise _error(errno.ENOTDIR, src, dst)
            if stat.S_ISDIR(older) and any(True for _ in self.names(target.logical, target.real)):
                raise _error(errno.ENOTEMPTY, src, dst)
        return False

    def _replaced(self, target: LayeredPath) -> None:
        logical, real, _ = target
        assert logical is not None
        assert real is not None
        if self.is_own(real) and not self.is_used_elsewhere(real, logical):
            (_rmdir if stat.S_ISDIR(mode_of(real, follow=False) or 0) else _unlink)(real)
            self._forget_made(real)
        self._hide(logical)

    def linked(self, link: Callable[[Any, Any], object], src: Any, dst: Any) -> None:
        """Give a file a second name."""
        source, target = self.place(src, follow=False), self.place(dst, follow=False)
        if source.logical is None or target.logical is None:
            self.make_new(lambda real: link(src, real), dst)
            return
        if source.real is None or mode_of(source.real, follow=False) is None:
            raise _error(errno.ENOENT, src, dst)
        if target.real is not None and mode_of(target.real, follow=False) is not None:
            raise _error(errno.EEXIST, src, dst)
        new = self._new(target.logical, dst)
        is_kept = source.real.startswith(self.folder + "/") or new != target.logical
        if self.is_own(source.real) and not is_kept:
            link(source.real, new)
            self._add_new(target.logical, new)
            return
        self.tell("at", target.logical, source.real)
        if source.logical in self.named:
            self.name(target.logical, dst)

    def _is_lower(self, logical: str) -> bool:
        """True if the path was there when the run began."""
        real = self.below_itself(logical)
        return (
            real is not None and mode_of(real, follow=False) is not None and not self.is_own(real)
        )

    def _hide(self, logical: str) -> None:
        """Let a path lead nowhere."""
        below = self.below_itself(logical)
        if below is not None and mode_of(below, follow=False) is not None:
            self.tell("at", logical, GONE)
        elif logical in self.moved:
            self.tell("drop", logical)

    def _delete(self, real: str) -> None:
        _unlink(real)
        self._forget_made(real)

    def _forget_made(self, real: str) -> None:
        if real in self.made:
            self.tell("unmade", real)

    def _carry_made(self, source: str, target: str) -> None:
        """Follow what this run made to another real place."""
        below = [path for path in self.made.copy() if path.startswith(source + "/")]
        self._forget_made(source)
        if target.startswith(self.folder + "/"):
            return
        for path in below:
            self.tell("made", target + path[len(source) :])
        if not self.is_own(target):
            self.tell("made", target)

    def _check_folder(self, logical: str, path: Any) -> None:
        """An error where this process has no right to change the names in a folder."""
        parent = os.path.dirname(logical)
        real = self.real_of("" if parent == "/" else parent)
        if real is not None and not _access(real or "/", os.W_OK | os.X_OK):
            raise _error(errno.EACCES, path)

    # Files without values

    def _is_kept(self, real: str, target: Any) -> bool:
        """True if what is renamed must not become a file on the disk."""
        if real.startswith(self.folder + "/") or self.is_in_kept_folder(target):
            return True
        return self.is_marked_file(real)

    def is_marked_file(self, real: str) -> bool:
        """True if a file holds data without values, as far as is known."""
        if real in self.lacking:
            return True
        if not stat.S_ISREG(mode_of(real, follow=False) or 0):
            return False
        with _open(real, "rb") as file:
            return MARK in file.read(_LOOKED_AT)

    def divert(self, descriptor: int, path: Any = None) -> None:
        """Let an open file of this run's own be one in the folder of the overlay from now on."""
        with self.lock:
            real = path_of_descriptor(descriptor)
            if real is None or not stat.S_ISREG(_fstat(descriptor).st_mode):
                return
            if not self.is_open:
                if real in self.made:
                    _unlink(real)
                return
            logical = self.logical_of(real)
            if self.is_own(real) and not real.startswith(self.folder + "/"):
                copy = self.new_copy(logical)
                copy_file(real, copy)
                redirect(descriptor, copy)
                self._delete(real)
                self.tell("at", logical, copy)
                real = copy
            self.tell("lacking", real, True)
            self.name(logical, logical if path is None else path)

    def keep_folder(self, path: Any) -> None:
        """Keep every file of a distributed checkpoint that is written there from now on."""
        logical = self.place(path).logical
        if logical is not None:
            self.tell("checkpoint", logical)
            self.name(logical, path)

    def is_in_kept_folder(self, path: Any) -> bool:
        """True if a file belongs to a distributed checkpoint that is kept."""
        if not self.checkpoints or not _is_path(path):
            return False
        folder, name = os.path.split(self.place(path).logical or "")
        return folder in self.checkpoints and name.endswith(_CHECKPOINT_ENDINGS)

    # Rules from now on

    def keep_new(self) -> None:
        """Put new files and folders into the folder of the overlay too, from now on."""
        self.tell("keep_new")

    def refuse_commands(self) -> None:
        """Refuse commands that cannot be held back, from now on."""
        self.tell("refuse_commands")

    # Its end

    def close(self) -> None:
        """Remove the copies, if this process made the overlay."""
        if not self.is_open or os.getpid() != self._owner or self.is_shared:
            self.is_open = False
            return
        self.final_names = self.paths()
        incomplete = self._incomplete_folders()
        self.is_open = False
        for folder in incomplete:
            remove_tree(folder)
        remove_tree(self.folder)

    def _incomplete_folders(self) -> set[str]:
        """New folders that lack a file: a program would take them for whole checkpoints."""
        folders = {
            self.real_of(os.path.dirname(logical))
            for logical in self.named.copy()
            if self.real_of(logical) in self.lacking
        }
        upper = self.folder + "/"
        return {
            folder
            for folder in folders
            if folder and self.is_own(folder) and not f"{folder}/".startswith(upper)
        }


def new_overlay() -> Overlay:
    """An overlay in which nothing is changed yet."""
    return Overlay(new_folder("pytorch_memlab_dry_run_"))


def _is_path(path: Any) -> bool:
    return isinstance(path, (str, bytes, os.PathLike))


def _error(number: int, *paths: Any) -> OSError:
    """The error that the system gives."""
    first, *others = paths
    return OSError(number, os.strerror(number), first, None, *others)
