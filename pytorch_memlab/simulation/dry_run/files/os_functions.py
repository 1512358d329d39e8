"""The functions of ``os`` that take paths, in a dry run; Note [Overlay]."""

from __future__ import annotations

import glob
import io
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from importlib.machinery import SourceFileLoader
from typing import TYPE_CHECKING, Any

from ...._common.patching.patches import Patches, modules_with
from ...._common.process.real_files import on_disk
from .layers import path_of_descriptor
from .marks import MARK, is_marked
from .opening import PlainFileIO, plain_open
from .overlay import Overlay

if TYPE_CHECKING:
    from typing import Self

_scandir = os.scandir
_READ: tuple[str, ...] = ("access", "chdir", "getxattr", "listxattr", "pathconf", "stat", "statvfs")
_READ_LINK: tuple[str, ...] = ("lstat", "readlink")
_CHANGE: tuple[str, ...] = ("chmod", "chown", "removexattr", "setxattr", "utime", "chflags")
_CHANGE_LINK: tuple[str, ...] = ("lchown", "lchmod", "lchflags")
_CHANGE_OPEN = {"fchmod": "chmod", "fchown": "chown"}
_SETS_OF_FUNCTIONS = (
    "supports_dir_fd",
    "supports_fd",
    "supports_follow_symlinks",
    "supports_effective_ids",
)
"""What functions of ``os`` can do: libraries look for them there."""
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_UNNAMED = getattr(os, "O_TMPFILE", 0)


def install(overlay: Overlay, patches: Patches) -> None:
    before = dict(vars(os))
    functions = _Functions(overlay, patches)
    functions.install()
    replaced = [
        (before[name], vars(os)[name])
        for name in patches.names_of(os)
        if hasattr(before[name], "__name__")
    ]
    replaced += [(plain_open, io.open), (PlainFileIO, io.FileIO)]
    for name in filter(os.__dict__.__contains__, _SETS_OF_FUNCTIONS):
        members = getattr(os, name)
        patches.set(os, name, {getattr(os, function.__name__) for function in members})
    # The import system has its own reference to posix: it reads the disk itself, which is fast.
    _set_by_name(patches, replaced)
    _install_private_references(overlay, patches)


def _set_by_name(patches: Patches, replaced: list[tuple[Any, Any]]) -> None:
    """Replace functions in the modules that hold them under their own names."""
    named = [(original.__name__, original, value) for original, value in replaced]
    for module, held in modules_with(frozenset(name for name, *_ in named)):
        if held.get("__name__") in _OF_THE_SYSTEM:
            continue
        for name, original, value in named:
            # A module that was imported in an earlier dry run may hold what stood there then.
            value_held = held.get(name, held)
            if value_held is original or getattr(value_held, "__wrapped__", None) is original:
                patches.set(module, name, value)


_OF_THE_SYSTEM = frozenset(
    {"os", "posix", "nt", "_io", "_pyio", "_frozen_importlib", "_frozen_importlib_external"}
    | {__name__, f"{__package__}.layers", f"{__package__}.overlay", f"{__package__}.opening"}
)


def _install_private_references(overlay: Overlay, patches: Patches) -> None:
    globber = getattr(glob, "_StringGlobber", None)  # Python 3.13 has its own reference
    if getattr(globber, "scandir", None) is _scandir:
        patches.set(globber, "scandir", staticmethod(os.scandir))
    patches.set(shutil, "_use_fd_functions", False)
    # Its default argument is the function of ``os``.
    closer = vars(tempfile)["_TemporaryFileCloser"]
    for name in ("close", "cleanup"):
        if name in vars(closer) and "unlink" in vars(closer)[name].__code__.co_varnames:

            @patches.around(closer, name)
            def closed(close: Callable[..., Any], self: Any, *args: Any) -> Any:
                return close(self, *args, unlink=os.unlink)

    @patches.around(shutil, "rmtree")
    def rmtree(remove: Callable[..., Any], path: Any, *args: Any, **options: Any) -> None:
        is_plain = overlay.is_on and options.get("dir_fd") is None and _is_path(path)
        if is_plain and overlay.tree_removed(path):
            return
        remove(path, *args, **options)

    # Python would write the bytecode of a module that has changed over the older one.
    @patches.around(SourceFileLoader, "set_data")
    def set_data(write: Callable[..., Any], self: Any, path: str, data: Any, **options: Any) -> Any:
        if not overlay.is_on or not os.path.exists(path):
            return write(self, path, data, **options)
        return None


def _is_path(path: Any) -> bool:
    return isinstance(path, (str, bytes, os.PathLike))


class _Entry(os.PathLike[Any]):
    """An entry of a folder, as ``os.scandir`` gives it."""

    def __init__(self, folder: Any, name: Any) -> None:
        self.name = name
        self.path = os.path.join(folder, name)

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def _mode(self, *, follow_symlinks: bool) -> int:
        try:
            return self.stat(follow_symlinks=follow_symlinks).st_mode
        except FileNotFoundError:
            return 0

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return stat.S_ISREG(self._mode(follow_symlinks=follow_symlinks))

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return stat.S_ISDIR(self._mode(follow_symlinks=follow_symlinks))

    def is_symlink(self) -> bool:
        return stat.S_ISLNK(self._mode(follow_symlinks=False))

    def is_junction(self) -> bool:
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self.path, follow_symlinks=follow_symlinks)

    def inode(self) -> int:
        return self.stat(follow_symlinks=False).st_ino


class _Entries:
    """The entries of a folder."""

    def __init__(self, entries: Iterable[Any]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return next(self._entries)

    def close(self) -> None:
        self._entries = iter(())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Functions:
    """Functions that stand for those of ``os``."""

    def __init__(self, overlay: Overlay, patches: Patches) -> None:
        self._overlay = overlay
        self._patches = patches

    def install(self) -> None:
        for wrapper, names, follow in (
            (self._read, _READ, True),
            (self._read, _READ_LINK, False),
            (self._change, _CHANGE, True),
            (self._change, _CHANGE_LINK, False),
        ):
            existing = filter(os.__dict__.__contains__, names)
            self._patches.around(os, *existing)(partial(wrapper, follow))
        for name, by_path in _CHANGE_OPEN.items():
            if hasattr(os, name):
                self._patches.around(os, name)(partial(self._change_open, getattr(os, by_path)))
        around = partial(self._patches.around, os)
        around("open")(self._open)
        around("listdir")(self._listdir)
        around("scandir")(self._scandir)
        around("getcwd")(self._getcwd)
        around("getcwdb")(self._getcwdb)
        around("truncate")(self._truncate)
        around("mkdir", *filter(os.__dict__.__contains__, ("mkfifo", "mknod")))(self._make)
        around("symlink")(self._symlink)
        around("link")(self._link)
        around("rename", "replace")(self._rename)
        around("remove", "unlink")(self._remove)
        around("rmdir")(self._rmdir)
        around("write")(self._write)
        for name in filter(os.__dict__.__contains__, ("sendfile", "copy_file_range")):
            around(name)(partial(self._copy, name))

    def _at(self, path: Any, options: dict[str, Any], name: str = "dir_fd") -> Any:
        """The path that a name in an open folder has."""
        folder = options.get(name)
        if folder is None or not _is_path(path):
            return path
        options.pop(name)
        text = os.fsdecode(path)
        parent = None if text.startswith("/") else self._overlay.path_of(folder)
        if parent is None:
            if not text.startswith("/"):
                options[name] = folder
            return path
        return f"{parent}/{text}"

    def _read(self, follow: bool, read: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
        overlay = self._overlay
        if not overlay.is_on or not overlay.is_changed():
            return read(*args, **options)
        path, others = _first(args, options, ".")
        path = self._at(path, options)
        if not _is_path(path) or options.get("dir_fd") is not None:
            return read(path, *others, **options)
        follows = follow and options.get("follow_symlinks", True)
        target = overlay.to_read(path, follow=follows)
        return _called(partial(read, target, *others, **options), path, target)

    def _change(
        self, follow: bool, change: Callable[..., Any], /, *args: Any, **options: Any
    ) -> Any:
        if not self._overlay.is_on:
            return change(*args, **options)
        path, others = _first(args, options, None)
        path = self._at(path, options)
        if isinstance(path, int):
            return self._change_open(change, change, path, *others, **options)
        follows = follow and options.get("follow_symlinks", True)
        return self._overlay.changed(
            lambda real: _called(partial(change, real, *others, **options), path, real),
            path,
            follow=follows,
        )

    def _change_open(
        self, by_path: Callable[..., Any], change: Callable[..., Any], /, *args: Any, **options: Any
    ) -> Any:
        """Change what is open: by its path, where it was there before the run."""
        overlay = self._overlay
        descriptor, others = _first(args, options, None, "fd")
        real = path_of_descriptor(descriptor) if overlay.is_on else None
        is_lower = real is not None and os.path.isabs(real) and not overlay.is_own(real)
        if not is_lower or real is None or not stat.S_ISREG(os.fstat(descriptor).st_mode):
            if is_lower and stat.S_ISDIR(os.fstat(descriptor).st_mode):
                return None
            return change(descriptor, *others, **options)
        return overlay.changed(
            lambda path: by_path(path, *others, **options), overlay.logical_of(real)
        )

    def _open(self, open_: Callable[..., int], /, *args: Any, **options: Any) -> Any:
        overlay = self._overlay
        if not overlay.is_on:
            return open_(*args, **options)
        path, (flags, *others) = _first(args, options, None)
        path = self._at(path, options)
        if options.get("dir_fd") is not None:
            return open_(path, flags, *others, **options)
        follows = not flags & os.O_NOFOLLOW
        if not flags & _WRITING or (_UNNAMED and flags & _UNNAMED == _UNNAMED):
            target = overlay.to_read(path, follow=follows)
            return _called(partial(open_, target, flags, *others, **options), path, target)
        with overlay.written(
            path,
            creates=bool(flags & os.O_CREAT),
            truncates=bool(flags & os.O_TRUNC),
            exclusive=bool(flags & os.O_CREAT and flags & os.O_EXCL),
            follow=follows,
        ) as target:
            return _called(partial(open_, target, flags, *others, **options), path, target)

    def _listdir(self, listdir: Callable[..., Any], path: Any = ".") -> Any:
        place = self._folder(path)
        if place is None:
            return listdir(path)
        logical, real = place
        _called(partial(listdir, real), path, real)  # an error, if it is no folder
        names = list(self._overlay.names(logical, real))
        return list(map(os.fsencode, names)) if isinstance(path, bytes) else names

    def _scandir(self, scandir: Callable[..., Any], path: Any = ".") -> Any:
        place = self._folder(path)
        if place is None:
            return scandir(path)
        logical, real = place
        folder = logical if isinstance(path, int) else os.fspath(path)
        names = self._overlay.names(logical, real)
        if isinstance(path, bytes):
            return _Entries(_Entry(folder, os.fsencode(name)) for name in names)
        if logical != real:
            _called(partial(scandir, real), path, real).close()  # an error, if it is no folder
            return _Entries(_Entry(folder, name) for name in names)
        moved = {os.path.basename(child) for child in self._overlay.children(logical)}
        with scandir(path) as entries:
            plain = {entry.name: entry for entry in entries if entry.name not in moved}
        return _Entries(plain.get(name) or _Entry(folder, name) for name in names)

    def _folder(self, path: Any) -> tuple[str, str] | None:
        """The folder and its place, if something in it is not as on the disk."""
        overlay = self._overlay
        if not overlay.is_on or not overlay.is_changed():
            return None
        directory = overlay.path_of(path) if isinstance(path, int) else path
        if directory is None or not _is_path(directory):
            return None
        logical, real, is_moved = overlay.place(directory)
        if logical is None:
            return None
        if real is None:
            with overlay.written(directory, creates=False):  # the error of a missing file
                return None
        if not is_moved and not overlay.children(logical):
            return None
        return logical, real

    def _getcwd(self, getcwd: Callable[[], str]) -> str:
        overlay = self._overlay
        return overlay.working_folder() if overlay.is_on and overlay.is_changed() else getcwd()

    def _getcwdb(self, _getcwdb: Callable[[], bytes]) -> bytes:
        return os.fsencode(os.getcwd())

    def _truncate(self, truncate: Callable[..., Any], path: Any, length: int) -> None:
        if isinstance(path, int) or not self._overlay.is_on:
            truncate(path, length)
            return
        with self._overlay.written(path, creates=False, truncates=length == 0) as target:
            _called(partial(truncate, target, length), path, target)

    def _make(self, make: Callable[..., Any], /, *args: Any, **options: Any) -> None:
        if not self._overlay.is_on:
            make(*args, **options)
            return
        path, others = _first(args, options, None)
        path = self._at(path, options)
        if options.get("dir_fd") is not None:
            make(path, *others, **options)
            return
        self._overlay.make_new(
            lambda real: _called(partial(make, real, *others, **options), path, real), path
        )

    def _symlink(
        self,
        symlink: Callable[..., Any],
        src: Any,
        dst: Any,
        target_is_directory: bool = False,
        **options: Any,
    ) -> None:
        if not self._overlay.is_on:
            symlink(src, dst, target_is_directory, **options)
            return
        path = self._at(dst, options)
        self._overlay.make_new(
            lambda real: _called(partial(symlink, src, real, target_is_directory), path, real), path
        )

    def _link(self, link: Callable[..., Any], src: Any, dst: Any, **options: Any) -> None:
        self._two_paths(self._overlay.linked, link, src, dst, options)

    def _rename(self, rename: Callable[..., Any], src: Any, dst: Any, **options: Any) -> None:
        self._two_paths(self._overlay.renamed, rename, src, dst, options)

    def _two_paths(
        self,
        carry_out: Callable[..., None],
        function: Callable[..., Any],
        src: Any,
        dst: Any,
        options: dict[str, Any],
    ) -> None:
        if not self._overlay.is_on:
            function(src, dst, **options)
            return
        source = self._at(src, options, "src_dir_fd")
        target = self._at(dst, options, "dst_dir_fd")
        if not _is_path(source) or not _is_path(target):
            function(src, dst, **options)  # an error
            return
        carry_out(partial(function, **options), source, target)

    def _remove(self, remove: Callable[..., Any], path: Any, **options: Any) -> None:
        self._one_path(self._overlay.removed, remove, path, options)

    def _rmdir(self, remove: Callable[..., Any], path: Any, **options: Any) -> None:
        self._one_path(self._overlay.folder_removed, remove, path, options)

    def _one_path(
        self,
        carry_out: Callable[..., None],
        function: Callable[..., Any],
        path: Any,
        options: dict[str, Any],
    ) -> None:
        if not self._overlay.is_on or not _is_path(path):
            function(path, **options)
            return
        path = self._at(path, options)
        carry_out(lambda real: _called(partial(function, real, **options), path, real), path)

    def _write(self, write: Callable[..., int], fd: int, data: Any) -> int:
        if self._overlay.is_on and (is_marked(data) or _has_mark(data)):
            self._overlay.divert(fd)
        return write(fd, data)

    def _copy(self, name: str, copy: Callable[..., int], /, *args: Any, **options: Any) -> int:
        """Copy from one open file to another; what has no values goes to no file on the disk."""
        if self._overlay.is_on:
            out, source = (args[0], args[1]) if name == "sendfile" else (args[1], args[0])
            path = path_of_descriptor(source) or ""
            is_kept = path.startswith(self._overlay.folder + "/")
            if is_kept and self._overlay.is_marked_file(path):
                self._overlay.divert(out)
        return copy(*args, **options)


_LEAST_MARKED = len(MARK)


def _has_mark(data: Any) -> bool:
    view = memoryview(data)
    return view.nbytes >= _LEAST_MARKED and MARK in bytes(view)


def _first(
    args: tuple[Any, ...], options: dict[str, Any], default: Any, name: str = "path"
) -> tuple[Any, tuple[Any, ...]]:
    """The path among the arguments, and the others."""
    if args:
        return args[0], args[1:]
    path = options.pop(name, default)
    # Further arguments may have names too.
    return path, tuple(options.pop(key) for key in ("flags",) if key in options)


def _called(function: Callable[[], Any], path: Any, target: Any) -> Any:
    """The result of a function; an error names the path that the program has."""
    if target is path:
        return function()
    try:
        with on_disk():
            return function()
    except OSError as error:
        if error.filename == target:
            error.filename = path
        raise
