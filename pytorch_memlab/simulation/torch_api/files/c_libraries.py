"""Libraries of C that open paths by themselves, in a dry run; Note [Overlay]."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final

import numpy as np
import torch

from ...._common.patching.after_import import AfterImport
from ...._common.patching.patches import Patches
from ...dry_run.files.opening import watched_file
from ...dry_run.files.overlay import Overlay
from ...machine.tensor_values import TensorValues

_BESIDE_SQLITE: Final = ("-wal", "-journal")
_DBM_ENDINGS: Final = ("", ".db", ".dir", ".pag", ".dat", ".bak")
_READING: Final = (
    ("cv2", "imread"),
    ("cv2", "VideoCapture"),
    ("torchvision.io", "read_file"),
    ("torchvision.io.image", "read_file"),
    ("torchvision.io.image", "read_image"),
    ("pyarrow", "memory_map"),
    ("pyarrow.feather", "read_table"),
)
_WRITING: Final = (
    ("cv2", "imwrite"),
    ("torchvision.io", "write_file"),
    ("torchvision.io.image", "write_file"),
    ("torchvision.io", "write_png"),
    ("torchvision.io.image", "write_png"),
    ("torchvision.io", "write_jpeg"),
    ("torchvision.io.image", "write_jpeg"),
    ("pyarrow.feather", "write_feather"),
    ("pyarrow.csv", "write_csv"),
    ("pyarrow.orc", "write_table"),
    ("pyarrow.parquet.core", "ParquetWriter.__init__"),
)
"""Functions whose first path is read or written as a whole."""
_H5PY_CREATES: Final = ("w", "w-", "x", "a")


def install(values: TensorValues, kept: Overlay, imports: AfterImport, patches: Patches) -> None:
    _install_storages(values, kept, patches)
    _install_archives(kept, patches)
    _install_maps(kept, patches)
    for name in ("sqlite3", "sqlite3.dbapi2"):
        imports.call(name, partial(_connect_to_copies, kept, patches))
    for name in ("dbm.gnu", "dbm.ndbm"):
        imports.call(name, partial(_open_copies, kept, patches))
    imports.call("h5py", partial(_open_hdf5, kept, patches))
    for module, name in _READING:
        imports.call(module, partial(_read, kept, patches, name))
    for module, name in _WRITING:
        imports.call(module, partial(_write, kept, patches, name))


def _is_path(value: Any) -> bool:
    return isinstance(value, (str, bytes, os.PathLike))


def _install_storages(values: TensorValues, kept: Overlay, patches: Patches) -> None:
    storage: Any = torch.UntypedStorage

    def mapped(
        make: Callable[..., Any], filename: Any, shared: Any = False, *args: Any, **kwargs: Any
    ) -> Any:
        if not shared:
            return make(kept.to_read(filename), shared, *args, **kwargs)
        with kept.written(filename, truncates=False, always_kept=True) as target:
            return make(target, shared, *args, **kwargs)

    patches.around(torch, "from_file")(mapped)
    original = storage.from_file

    def from_file(*args: Any, **kwargs: Any) -> Any:
        return mapped(original, *args, **kwargs)

    patches.set(storage, "from_file", staticmethod(from_file))

    @patches.around(storage, "_write_file")
    def write_file(write: Callable[..., None], self: Any, file: Any, *args: Any) -> None:
        if values.storage_lacks_values(self):
            watched = watched_file(file)
            if watched is not None:
                file.flush()
                watched.divert()
        write(self, file, *args)


def _install_archives(kept: Overlay, patches: Patches) -> None:
    """PyTorch's reader and writer of archives open the paths that they get."""
    c: Any = torch._C
    plain_reader: Any = c.PyTorchFileReader
    plain_writer: Any = c.PyTorchFileWriter

    class PyTorchFileReader(plain_reader):  # type: ignore[misc]
        def __init__(self, source: Any, *args: Any, **kwargs: Any) -> None:
            path = kept.to_read(source)
            super().__init__(path if path is source else str(path), *args, **kwargs)

    class PyTorchFileWriter(plain_writer):  # type: ignore[misc]
        def __init__(self, target: Any, *args: Any, **kwargs: Any) -> None:
            with kept.written(target) as path:
                super().__init__(path if path is target else str(path), *args, **kwargs)

    patches.set(c, "PyTorchFileReader", PyTorchFileReader)
    patches.set(c, "PyTorchFileWriter", PyTorchFileWriter)


def _install_maps(kept: Overlay, patches: Patches) -> None:
    """``np.memmap``: what is assigned to a map is not seen, so it is never on the disk."""
    module: Any = sys.modules[np.memmap.__new__.__globals__["__name__"]]

    def opened(file: Any, mode: str) -> Any:
        if not _is_path(file) or not any(sign in mode for sign in "wa+"):
            return open(file, mode)
        is_new = "w" in mode
        with kept.written(file, creates=is_new, truncates=is_new, always_kept=True) as target:
            opened = open(target, mode)  # noqa: SIM115 - the caller closes it
        place = kept.place(file)
        if is_new and place.logical is not None and place.real != place.logical:
            kept.name(place.logical, file)
        return opened

    patches.set(module, "open", opened)


def _connect_to_copies(kept: Overlay, patches: Patches, module: Any) -> None:
    @patches.around(module, "connect")
    def connect(connect: Callable[..., Any], database: Any, *args: Any, **kwargs: Any) -> Any:
        text = os.fsdecode(database) if _is_path(database) else ":memory:"
        is_uri = kwargs.get("uri", False) and text.startswith("file:")
        if text in {"", ":memory:"} or ":memory:" in text or not kept.is_on:
            return connect(database, *args, **kwargs)
        path, _, query = text.removeprefix("file:").partition("?") if is_uri else (text, "", "")
        if is_uri and path.startswith("//"):
            path = path[2:]
        if "mode=ro" in query or "immutable=1" in query:
            target = kept.to_read(path)
        else:
            target = _copied(kept, path, _BESIDE_SQLITE)
        if target is path:
            made = connect(database, *args, **kwargs)
            with kept.written(path, truncates=False):
                pass  # the file is this run's own now
            return made
        whole = f"file:{target}?{query}" if is_uri else target
        return connect(whole, *args, **kwargs)


def _copied(kept: Overlay, path: str, endings: Sequence[str]) -> Any:
    """The path of a database to open; a copy of one that is there, with the files beside it."""
    if not os.path.exists(path):
        place = kept.place(path)
        if place.logical is None or place.logical not in kept.moved:
            return path
    with kept.written(path, truncates=False) as target:
        if target is path:
            return path
        if not os.path.exists(target):
            with open(target, "wb"):
                pass
        for ending in endings:
            beside = f"{target}{ending}"
            if os.path.exists(f"{path}{ending}") and not os.path.exists(beside):
                with open(f"{path}{ending}", "rb") as old, open(beside, "wb") as new:
                    new.write(old.read())
        return target


def _open_copies(kept: Overlay, patches: Patches, module: Any) -> None:
    """``dbm``: the library adds endings to the path."""

    @patches.around(module, "open")
    def opened(open_: Callable[..., Any], filename: Any, flags: str = "r", *args: Any) -> Any:
        if not kept.is_on:
            return open_(filename, flags, *args)
        name = os.fsdecode(filename)
        before = [end for end in _DBM_ENDINGS if os.path.isfile(name + end)]
        if flags[:1] == "r" or not before:
            target = kept.to_read(name + before[0]).removesuffix(before[0]) if before else name
            database = open_(target, flags, *args)
            for end in _DBM_ENDINGS if target == name and flags[:1] != "r" else ():
                if os.path.isfile(name + end):
                    kept.tell("made", kept.place(name + end).real)
            return database
        with ExitStack() as exits:
            targets = [
                (end, exits.enter_context(kept.written(name + end, truncates=flags[:1] == "n")))
                for end in before
            ]
            folder = os.path.dirname(targets[0][1])
            base = os.path.join(folder, os.path.basename(name))
            for end, target in targets[1:]:  # in one folder
                if os.path.dirname(target) != folder:
                    os.link(target, base + end)
                    kept.tell("at", kept.place(name + end).logical, base + end)
            return open_(base, flags, *args)


def _open_hdf5(kept: Overlay, patches: Patches, module: Any) -> None:
    @patches.around(module.File, "__init__")
    def init(
        init: Callable[..., None], self: Any, name: Any, mode: str = "r", *args: Any, **kwargs: Any
    ) -> None:
        if not _is_path(name) or kwargs.get("driver") not in {None, "sec2", "stdio"}:
            init(self, name, mode, *args, **kwargs)
            return
        if mode == "r":
            init(self, kept.to_read(name), mode, *args, **kwargs)
            return
        options = {"creates": mode in _H5PY_CREATES, "truncates": mode == "w"}
        with kept.written(
            name, **options, exclusive=mode in {"w-", "x"}, always_kept=True
        ) as target:
            init(self, target, mode, *args, **kwargs)
        place = kept.place(name)
        if place.logical is not None and place.real != place.logical:
            kept.name(place.logical, name)


@contextmanager
def _path_replaced(args: tuple[Any, ...], context: Any) -> Iterator[tuple[Any, ...]]:
    """Arguments with another path in place of the first one."""
    index = next((index for index, value in enumerate(args) if _is_path(value)), None)
    if index is None:
        yield args
        return
    with context(args[index]) as path:
        yield (*args[:index], path, *args[index + 1 :])


def _read(kept: Overlay, patches: Patches, name: str, module: Any) -> None:
    @contextmanager
    def reading(path: Any) -> Iterator[Any]:
        yield kept.to_read(path)

    _around(patches, module, name, reading)


def _write(kept: Overlay, patches: Patches, name: str, module: Any) -> None:
    _around(patches, module, name, kept.written)


def _around(patches: Patches, module: Any, name: str, context: Any) -> None:
    *owners, name = name.split(".")
    owner = module
    for part in owners:
        owner = getattr(owner, part, None)
    if not hasattr(owner, name):
        return

    @patches.around(owner, name)
    def called(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        with _path_replaced(args, context) as others:
            return function(*others, **kwargs)
