"""A file that holds something else for this process; nothing is written."""

from __future__ import annotations

import builtins
import io
import os
import pathlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import IO, Any

from .._common.patches import Patches


class _Content(io.BytesIO):
    """An open file of which only the content is there."""

    def __init__(self, content: bytes, name: Any) -> None:
        super().__init__(content)
        self.name = name


@contextmanager
def replaced_file(
    path: str, content: bytes, was_read: Callable[[], object] = lambda: None
) -> Iterator[None]:
    """Let this process read something else where it reads a file, or imports it.

    Who opens the file to write it, or opens it without Python's ``open``, gets the file itself.
    """
    real = os.path.realpath(path)
    base = os.path.basename(real)

    def is_meant(file: Any) -> bool:
        try:
            name = os.fsdecode(file)
        except TypeError:  # a number that the system gave to an open file
            return False
        return (base in name or os.path.islink(name)) and os.path.realpath(name) == real

    def contents() -> bytes:
        was_read()
        return content

    with Patches() as patches:
        _replace_open(patches, is_meant, contents)
        _replace_import(patches, is_meant, contents)
        yield


def _replace_open(
    patches: Patches, is_meant: Callable[[Any], bool], contents: Callable[[], bytes]
) -> None:
    former, former_code = io.open, io.open_code

    def open(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> IO[Any]:
        if set("wax+").isdisjoint(mode) and is_meant(file):
            raw = _Content(contents(), file)
            if "b" in mode:
                return raw
            return io.TextIOWrapper(raw, encoding, errors, newline)
        return former(file, mode, buffering, encoding, errors, newline, closefd, opener)

    def open_code(path: str) -> IO[bytes]:
        return _Content(contents(), path) if is_meant(path) else former_code(path)

    patches.set(builtins, "open", open)
    patches.set(io, "open", open)
    patches.set(io, "open_code", open_code)
    accessor = getattr(pathlib, "_NormalAccessor", None)  # Python 3.10
    if accessor is not None:
        patches.set(accessor, "open", staticmethod(open))


def _replace_import(
    patches: Patches, is_meant: Callable[[Any], bool], contents: Callable[[], bytes]
) -> None:
    former = SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, fullname: str) -> CodeType | None:
        if is_meant(self.path):
            return self.source_to_code(contents(), self.path)
        return former(self, fullname)

    patches.set(SourceFileLoader, "get_code", get_code)
