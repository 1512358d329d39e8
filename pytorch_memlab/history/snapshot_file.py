"""The file of a memory snapshot, and what else a file may be that was given in its place."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from ..errors import SnapshotError

_GZIP: Final = b"\x1f\x8b"
_HEAD: Final = 512
_DUMP: Final = "a snapshot is what torch.cuda.memory._dump_snapshot() writes"
_MOST_EXPANSION: Final = 100
"""Times its size that a compressed file may have; snapshots have some twenty."""


@contextmanager
def open_snapshot(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a file that may be compressed by gzip, and read its pickle."""
    with open(path, "rb") as file:
        head = file.read(_HEAD)
        file.seek(0)
        if not head.startswith(_GZIP):
            _check(path, head)
            yield file
            return
        with gzip.open(file) as expanded:
            _check(path, expanded.read(_HEAD))
            expanded.seek(0)
            yield _Expanded(expanded, path, os.fstat(file.fileno()).st_size)  # type: ignore[misc]


class _Expanded:
    """A compressed file that does not expand to more than a snapshot would."""

    def __init__(self, file: gzip.GzipFile, path: str | Path, size: int) -> None:
        self._file = file
        self._path = path
        self._left = max(size, 2**16) * _MOST_EXPANSION

    def read(self, size: int) -> bytes:
        """So many bytes of the content."""
        data = self._file.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise SnapshotError(
                f"{self._path} is not a memory snapshot: it expands to more than "
                f"{_MOST_EXPANSION} times its size"
            )
        return data


def _check(path: str | Path, head: bytes) -> None:
    """Refuse what is no pickle of protocol 2 or newer."""
    if head.startswith(b"\x80"):
        return
    if not head:
        raise SnapshotError(f"{path} is empty: {_DUMP}")
    raise SnapshotError(f"{path} is not a memory snapshot: {_kind(path, head)}")


def _kind(path: str | Path, head: bytes) -> str:
    text = head.lstrip()
    if text.startswith((b"{", b"[")):
        if b'"format"' in text:
            return f"it is a saved profile, which pytorch-memlab show {path} shows"
        return f"it is JSON, and {_DUMP}"
    if text.startswith(b"<"):
        return f"it is a web page, and {_DUMP}"
    if head.startswith(b"PK"):
        return f"it is a zip file, such as torch.save() writes, and {_DUMP}"
    return f"it is no pickle of protocol 2 or newer, and {_DUMP}"
