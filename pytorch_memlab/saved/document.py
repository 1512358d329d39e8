"""The frame of each file of JSON: its format, its version, its checksum, and what is wrong with it.

Note [Checksums of files]
The checksum is the last member of the object, on its own line. It is the SHA-256 of all bytes
before that line, and so of the content in the order and with the spaces in which it was written.
A carriage return before the end of a line does not count: git may add them. A file without a
checksum is read: releases before wrote none, and who edits a file removes it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, Final, TypeVar

from .._common.process.version import __version__
from .._common.text.near_files import why_not_opened
from .._common.text.quoted import printable
from ..errors import ProfileError
from .checked import DamagedError

_LINE: Final = re.compile(r'\n,"checksum":"sha256:([0-9a-f]{64})"\r?\n\}\s*\Z')

_PICKLE: Final = b"\x80"
_ZIP: Final = b"P"
_BEGINNING: Final = re.compile(rb'\s*\{\s*"format"')

T = TypeVar("T")


def read_text(path: str | PathLike[str]) -> str:
    """The text of a file that may be a saved profile."""
    name = os.fspath(path)
    try:
        with open(path, "rb") as file:
            head = file.read(1)
            rest = b"" if head in (_PICKLE, _ZIP) else file.read()
    except OSError as error:
        raise ProfileError(f"cannot read {name}: {why_not_opened(error, name)}") from None
    if not head:
        raise ProfileError(f"{name} is empty")
    if head == _PICKLE:
        raise ProfileError(
            f"{name} is a pickle, such as a memory snapshot, and no profile: pytorch-memlab peak "
            "reads snapshots"
        )
    if head == _ZIP:
        raise ProfileError(f"{name} is no profile of pytorch_memlab: it is no JSON")
    return (head + rest).decode("utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True)
class FileFormat:
    """A kind of file."""

    name: str  # the first member of its object
    version: int  # the newest one
    noun: str  # what messages call such a file
    damaged: str = "damaged"  # what they call a damaged one
    hint: str = ""  # what to do about it
    indent: int | None = None
    # what messages say of files of other formats, by the names of these
    others: Mapping[str, str] = field(default_factory=dict)

    def text_of(self, data: Mapping[str, Any]) -> str:
        """The document of an object, with its checksum as its last member."""
        head = {"format": self.name, "version": self.version, "written_by": __version__}
        separators = (",", ":") if self.indent is None else None
        document = json.dumps(
            head | dict(data), allow_nan=False, indent=self.indent, separators=separators
        )
        content = document.removesuffix("}").rstrip()
        return f'{content}\n,"checksum":"sha256:{_digest(content)}"\n}}\n'

    def begins(self, text: str) -> bool:
        """True if a text is such a file, perhaps a damaged one."""
        beginning = rf'\s*\{{\s*"format"\s*:\s*"{re.escape(self.name)}"'
        return re.match(beginning, text[:200]) is not None

    def read(self, path: str | PathLike[str], read: Callable[[dict[str, Any]], T]) -> T:
        """Read a file; see ``load``."""
        return self.load(read_text(path), os.fspath(path), read)

    def read_if_one(
        self, path: str | PathLike[str], read: Callable[[dict[str, Any]], T]
    ) -> T | None:
        """The same; None for a file that begins as no file of any of these formats does."""
        beginning = b""
        with suppress(OSError), open(path, "rb") as file:
            beginning = file.read(64)
        return self.read(path, read) if _BEGINNING.match(beginning) else None

    def load(self, text: str, file: str, read: Callable[[dict[str, Any]], T]) -> T:
        """Read the object of a text by a function."""
        # Raises ProfileError for another kind of file, a file of a later release, and a damaged
        # one.
        data = self._object(text, file)
        _check(text, data, file)
        if data["version"] > self.version:
            raise ProfileError(
                f"{file} was written by pytorch_memlab {printable(str(data.get('written_by')))},"
                f" this is {__version__}: upgrade to read it"
            )
        try:
            return read(data)
        except DamagedError as error:
            raise ProfileError(f"{file} is {self.damaged}: {error}") from None

    def _object(self, text: str, file: str) -> dict[str, Any]:
        try:
            data = json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            if not self.begins(text):
                problem = f"no {self.noun}: it is no JSON"
            elif isinstance(error, json.JSONDecodeError):
                problem = f"cut off or damaged: its JSON ends or breaks at character {error.pos:,}"
            else:
                problem = f"cut off or damaged: {error or 'it is nested too deep'}"
            raise ProfileError(f"{file} is {problem}{self.hint}") from None
        is_one = isinstance(data, dict) and data.get("format") == self.name
        if not is_one or type(data.get("version")) is not int:
            named = str(data.get("format")) if isinstance(data, dict) else ""
            problem = self.others.get(named, f"is JSON, but no {self.noun}")
            raise ProfileError(f"{file} {problem}")
        return data  # type: ignore[no-any-return]


def _refuse_constant(name: str) -> None:
    """Refuse NaN and infinity, which are no JSON."""
    raise ValueError(f"{name} is no number")


def _check(text: str, data: Mapping[str, Any], file: str) -> None:
    """Refuse a file that was changed after it was written, of which ``data`` is the object."""
    if "checksum" not in data:
        return
    # The line is near the end of what may be hundreds of megabytes.
    start = max(0, len(text) - 200)
    line = _LINE.search(text, start)
    if line is None or _digest(text[: line.start()].removesuffix("\r")) != line[1]:
        raise ProfileError(
            f"{file} was changed or damaged after it was written, its checksum says: copy or"
            " record it again; to read it all the same, remove its line that begins with"
            ' ,"checksum"'
        )


def _digest(content: str) -> str:
    encoded = content.replace("\r\n", "\n").encode("utf-8", "surrogateescape")
    return hashlib.sha256(encoded).hexdigest()
