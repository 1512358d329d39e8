"""``torch.save`` and ``torch.load`` in a dry run.

What is saved with tensors that have no values is an archive as PyTorch has it, in which such a
tensor has no record but a size. See Note [Files without values].
"""

from __future__ import annotations

import io
import json
import os
import tempfile
from collections.abc import Callable
from typing import Any

import torch

from ...._common.patches import Patches
from ...machine.kept_files import MARK, KeptFiles
from ...machine.tensor_values import TensorValues
from .opened_files import parent_exists, watched_file

_serialization: Any = torch.serialization
_RECORD = MARK.decode()


class _Records:
    """The records of one ``torch.save``, until it is known whether they may be written."""

    def __init__(self, values: TensorValues) -> None:
        self._values = values
        self._calls: list[tuple[str, tuple[Any, ...]]] = []
        self._sizes: dict[str, int] = {}

    @property
    def lack_values(self) -> bool:
        """True if there is a storage without values."""
        return bool(self._sizes)

    def write_record(self, name: str, data: Any, size: int) -> None:
        """Write bytes, a text or a storage."""
        if isinstance(data, torch.UntypedStorage) and self._values.storage_lacks_values(data):
            self._sizes[name] = size
        else:
            self._calls.append(("write_record", (name, data, size)))

    def write_record_metadata(self, name: str, size: int) -> None:
        """Leave room for a record."""
        self._calls.append(("write_record_metadata", (name, size)))

    def replay(self, writer: Any) -> None:
        """Write what was written, and the sizes of what has no values."""
        if self._sizes:
            sizes = json.dumps(self._sizes)
            writer.write_record(_RECORD, sizes, len(sizes))
        for method, args in self._calls:
            getattr(writer, method)(*args)


class _Writer:
    """Stands for ``_open_zipfile_writer`` of PyTorch."""

    def __init__(
        self, target: Any, values: TensorValues, kept: KeptFiles, open_writer: Any
    ) -> None:
        self._target = target
        self._kept = kept
        self._open_writer = open_writer
        self._records = _Records(values)
        self._is_path = isinstance(target, (str, os.PathLike))
        if self._is_path and not parent_exists(target):
            # In the words of PyTorch's own writer, which others look for.
            raise RuntimeError(f"Parent directory {os.path.dirname(target)} does not exist.")

    def __enter__(self) -> _Records:
        return self._records

    def __exit__(self, kind: Any, *error: Any) -> None:
        if kind is not None:
            return
        if not self._records.lack_values:
            with self._open_writer(self._target) as writer:
                self._records.replay(writer)
            if self._is_path:
                self._kept.drop(self._target)
            return
        if self._is_path:
            copy = self._kept.new_copy()
            with self._open_writer(copy) as writer:
                self._records.replay(writer)
            self._kept.keep(self._target, copy)
            return
        buffer = io.BytesIO()
        with self._open_writer(buffer) as writer:
            self._records.replay(writer)
        write_marked(self._target, buffer.getvalue(), self._kept)


def write_marked(file: Any, data: bytes, kept: KeptFiles) -> None:
    """Write what stands for tensors without values to a file object.

    A file on the disk stays as it is: one that was opened to be overwritten is kept, and to any
    other nothing is written.
    """
    watched = watched_file(file)
    if watched is not None:
        watched.lacks_values = True
    elif _is_on_disk(file):
        kept.tell(file.name)
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
        """A tensor with the storage of a record."""
        size = self._sizes.get(name)
        if size is None:
            return self._reader.get_storage_from_record(name, *args)
        return self._values.make_bytes(size)


def install(values: TensorValues, kept: KeptFiles, patches: Patches) -> None:
    """Keep tensors without values out of what ``torch.save`` writes."""
    open_writer = _serialization._open_zipfile_writer
    open_reader = _serialization._open_zipfile_reader
    open_file = _serialization._open_file_like
    save_legacy = _serialization._legacy_save

    def open_zipfile_writer(target: Any) -> Any:
        return _Writer(target, values, kept, open_writer)

    def open_zipfile_reader(source: Any) -> Any:
        opener = open_reader(source)
        if opener.file_like.has_record(_RECORD):
            opener.file_like = _Reader(opener.file_like, values)
        return opener

    def open_file_like(file: Any, mode: str) -> Any:
        return open_file((kept.copy_of(file) or file) if mode == "rb" else file, mode)

    def legacy_save(obj: Any, f: Any, pickle_module: Any, pickle_protocol: Any) -> None:
        records = _Records(values)
        _serialization._save(obj, records, pickle_module, pickle_protocol, False)
        if not records.lack_values:
            save_legacy(obj, f, pickle_module, pickle_protocol)
            return
        buffer = io.BytesIO()
        with open_writer(buffer) as writer:
            records.replay(writer)
        write_marked(f, buffer.getvalue(), kept)

    patches.set(_serialization, "_open_zipfile_writer", open_zipfile_writer)
    patches.set(_serialization, "_open_zipfile_reader", open_zipfile_reader)
    patches.set(_serialization, "_open_file_like", open_file_like)
    patches.set(_serialization, "_legacy_save", legacy_save)
    load = _loader(kept, torch.load)
    patches.set(_serialization, "load", load)
    patches.set(torch, "load", load)


def _loader(kept: KeptFiles, load: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.load``, which cannot map a kept copy: it has no records to map."""

    def loaded(f: Any, *args: Any, **kwargs: Any) -> Any:
        if kept.copy_of(f) is not None:
            kwargs["mmap"] = False
        return load(f, *args, **kwargs)

    loaded.__doc__ = load.__doc__
    return loaded
