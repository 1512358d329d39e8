"""``torch.save``, ``torch.jit.save`` and ``torch.distributed.checkpoint`` in a dry run.

What is saved with tensors that have no values is an archive as PyTorch has it, in which such a
tensor has no record but a size. See Note [Files without values].
"""

from __future__ import annotations

import functools
import io
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import torch

from ...._common.patching.after_import import AfterImport
from ...._common.patching.patches import Patches
from ...._common.process.real_files import on_disk
from ...dry_run.files.marks import MARK
from ...dry_run.files.opening import watched_file
from ...dry_run.files.overlay import Overlay
from ...machine.tensor_values import TensorValues

_serialization: Any = torch.serialization
_jit: Any = torch.jit
_RECORD = MARK.decode()


class _Writer:
    """Stands for ``_open_zipfile_writer`` of PyTorch."""

    # It keeps the records until it is known whether they may be written.

    def __init__(self, target: Any, values: TensorValues, kept: Overlay, open_writer: Any) -> None:
        self._target = target
        self._values = values
        self._kept = kept
        self._open_writer = open_writer
        self._calls: list[tuple[str, tuple[Any, ...]]] = []
        self.sizes: dict[str, int] = {}
        if _is_path(target):
            _require_parent(target)

    def write_record(self, name: str, data: Any, size: int) -> None:
        if isinstance(data, torch.UntypedStorage) and self._values.storage_lacks_values(data):
            self.sizes[name] = size
        else:
            self._calls.append(("write_record", (name, data, size)))

    def write_record_metadata(self, name: str, size: int) -> None:
        self._calls.append(("write_record_metadata", (name, size)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, *error: Any) -> None:
        if kind is not None:
            return
        if self.sizes:
            self.write_marked()
            return
        if not _is_path(self._target):
            self._write(self._target)
            return
        with self._kept.written(self._target) as target:
            self._write(target)

    def write_marked(self) -> None:
        buffer = io.BytesIO()
        self._write(buffer)
        write_marked(self._target, buffer.getvalue(), self._kept)

    def _write(self, target: Any) -> None:
        with self._open_writer(target) as writer:
            if self.sizes:
                sizes = json.dumps(self.sizes)
                writer.write_record(_RECORD, sizes, len(sizes))
            for method, args in self._calls:
                getattr(writer, method)(*args)


def _is_path(target: Any) -> bool:
    return isinstance(target, (str, os.PathLike))


def _require_parent(path: Any) -> None:
    """In the words of PyTorch's own writers, which others look for."""
    if not os.path.isdir(os.path.dirname(os.path.realpath(path))):
        raise RuntimeError(f"Parent directory {os.path.dirname(path)} does not exist.")


def write_marked(file: Any, data: bytes, kept: Overlay) -> None:
    """Write what stands for tensors without values to a path or a file object."""
    # A file on the disk stays as it is: one that was opened to be overwritten is kept, and to any
    # other nothing is written.
    if _is_path(file):
        with kept.written(file, lacks_values=True) as target, on_disk():
            Path(target).write_bytes(data)
        return
    watched = watched_file(file)
    if watched is not None:
        watched.divert()
    elif _is_on_disk(file):
        kept.name(os.path.realpath(file.name), file.name)
        return
    file.write(data)
    flush = getattr(file, "flush", None)
    if flush is not None:
        flush()


def _is_on_disk(file: Any) -> bool:
    """True if a file object is a file of the user's, not one that vanishes."""
    name = getattr(file, "name", None)
    is_temporary = isinstance(file, tempfile._TemporaryFileWrapper)
    return isinstance(name, str) and not is_temporary and os.path.isfile(name)


class _Reader:
    """PyTorch's reader of an archive in which some storages have a size alone."""

    def __init__(self, reader: Any, values: TensorValues) -> None:
        self._reader = reader
        self._values = values
        self._sizes = json.loads(reader.get_record(_RECORD))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def get_storage_from_record(self, name: str, *args: Any) -> Any:
        size = self._sizes.get(name)
        if size is None:
            return self._reader.get_storage_from_record(name, *args)
        return self._values.make_bytes(size)


def install(values: TensorValues, kept: Overlay, imports: AfterImport, patches: Patches) -> None:
    open_writer = _serialization._open_zipfile_writer

    @patches.around(_serialization, "_open_zipfile_writer")
    def writer(open_writer: Callable[[Any], Any], target: Any) -> Any:
        return _Writer(target, values, kept, open_writer)

    @patches.around(_serialization, "_open_zipfile_reader")
    def reader(open_reader: Callable[[Any], Any], source: Any) -> Any:
        opener = open_reader(source)
        if opener.file_like.has_record(_RECORD):
            opener.file_like = _Reader(opener.file_like, values)
        return opener

    @patches.around(_serialization, "_legacy_save")
    def save(save: Callable[..., Any], obj: Any, f: Any, module: Any, protocol: Any) -> None:
        writer = _Writer(f, values, kept, open_writer)
        _serialization._save(obj, writer, module, protocol, False)
        if writer.sizes:
            writer.write_marked()
        else:
            save(obj, f, module, protocol)

    @patches.around(_serialization, "load")
    def load(load: Callable[..., Any], f: Any, *args: Any, **kwargs: Any) -> Any:
        path = kept.to_read(f)
        if path is not f and kept.is_marked_file(path):
            kwargs["mmap"] = False  # a kept copy has no records to map
        return load(path, *args, **kwargs)

    patches.set(torch, "load", _serialization.load)
    _install_jit(values, kept, patches)
    keep_checkpoints = functools.partial(_keep_checkpoints, values, kept, patches)
    imports.call("torch.distributed.checkpoint.filesystem", keep_checkpoints)


def _keep_checkpoints(values: TensorValues, kept: Overlay, patches: Patches, files: Any) -> None:
    """Keep checkpoints of ``torch.distributed.checkpoint`` with tensors without values."""
    # A checkpoint is a folder: where one tensor has no values, no file of it is written, also not
    # the one that describes the others.
    writer = getattr(files, "_FileSystemWriter", None) or files.FileSystemWriter

    @patches.around(writer, "write_data")
    def write(write_data: Callable[..., Any], self: Any, plan: Any, planner: Any) -> Any:
        for item in plan.items:
            data = planner.resolve_data(item) if item.tensor_data is not None else None
            if isinstance(data, torch.Tensor) and values.lacks_values(data):
                kept.keep_folder(self.path)
                break
        return write_data(self, plan, planner)


def _install_jit(values: TensorValues, kept: Overlay, patches: Patches) -> None:
    """Keep tensors without values out of what TorchScript writes, and read them again."""
    _install_saving_of_jit(values, kept, patches)
    _install_loading_of_jit(values, kept, patches)
    patches.set_all(_jit._serialization, {"save": _jit.save, "load": _jit.load})


def _install_saving_of_jit(values: TensorValues, kept: Overlay, patches: Patches) -> None:
    def names(module: Any) -> list[str]:
        tensors = module.state_dict(keep_vars=True).items()
        return [name for name, tensor in tensors if values.lacks_values(tensor)]

    def marked(module: Any, kwargs: dict[str, Any]) -> bytes:
        files = {**(kwargs.pop("_extra_files", None) or {}), _RECORD: json.dumps(names(module))}
        data: bytes = module._c.save_to_buffer(_extra_files=files, **kwargs)
        return data

    def save(self: Any, f: Any, **kwargs: Any) -> Any:
        path = os.fspath(f)
        if not names(self):
            with kept.written(path) as target:
                return self._c.save(str(target), **kwargs)
        _require_parent(path)
        return write_marked(path, marked(self, kwargs), kept)

    def save_to_buffer(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not names(self):
            return self._c.save_to_buffer(*args, **kwargs)
        return marked(self, kwargs)

    @patches.around(_jit, "save")
    def save_any(jit_save: Callable[..., Any], m: Any, f: Any, _extra_files: Any = None) -> None:
        if _is_path(f) or not isinstance(m, _jit.RecursiveScriptModule) or not names(m):
            jit_save(m, f, _extra_files=_extra_files)
        else:
            write_marked(f, marked(m, {"_extra_files": _extra_files}), kept)

    patches.set(_jit.RecursiveScriptModule, "save", save)
    patches.set(_jit.RecursiveScriptModule, "save_to_buffer", save_to_buffer)


def _install_loading_of_jit(values: TensorValues, kept: Overlay, patches: Patches) -> None:
    @patches.around(_jit, "load")
    def load(
        jit_load: Callable[..., Any],
        f: Any,
        map_location: Any = None,
        _extra_files: Any = None,
        **kwargs: Any,
    ) -> Any:
        path = kept.to_read(f)
        if path is f and not hasattr(f, "read"):
            return jit_load(f, map_location, _extra_files, **kwargs)
        data = f.read() if path is f else Path(path).read_bytes()
        if MARK not in data:
            return jit_load(io.BytesIO(data), map_location, _extra_files, **kwargs)
        extra = {} if _extra_files is None else _extra_files
        extra[_RECORD] = ""
        module = jit_load(io.BytesIO(data), map_location, extra, **kwargs)
        lacking = set(json.loads(extra.pop(_RECORD)))
        for name, tensor in module.state_dict(keep_vars=True).items():
            if name in lacking:
                values.forget_values(tensor)
        return module
