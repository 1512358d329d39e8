"""Files that may be saved profiles: what they are by their first bytes, and their text."""

from __future__ import annotations

import os
import re
from os import PathLike
from typing import Final

from ..errors import ProfileError

_PICKLE: Final = b"\x80"
_ZIP: Final = b"P"
_BEGINNING: Final = re.compile(rb'\s*\{\s*"format"')


def is_saved_profile(path: str | PathLike[str]) -> bool:
    """True if a file begins as a saved profile does, of any version."""
    try:
        with open(path, "rb") as file:
            return _BEGINNING.match(file.read(64)) is not None
    except OSError:
        return False


def read_text(path: str | PathLike[str]) -> str:
    """The text of a file that may be a saved profile."""
    name = os.fspath(path)
    try:
        with open(path, "rb") as file:
            head = file.read(1)
            rest = b"" if head in (_PICKLE, _ZIP) else file.read()
    except OSError as error:
        raise ProfileError(f"cannot read {name}: {error.strerror or error}") from None
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
