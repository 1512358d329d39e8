"""Recordings, which are not overwritten unless the user says so."""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path

from ..errors import UsageError


def is_taken(path: str | PathLike[str]) -> bool:
    """True if writing would overwrite the content of a file."""
    return os.path.isfile(path) and os.path.getsize(path) > 0


def check_free(path: str) -> None:
    """Find out beforehand whether there is a recording that would be overwritten."""
    if is_taken(path):
        raise UsageError(
            f"{path} is there already: --force (force=True) overwrites it, and {{pid}} in the name "
            "gives every run its own file"
        )


def free_path(path: Path) -> Path:
    """The path, or one with the number of this process if there is a recording by now."""
    return path.with_name(f"{path.stem}.{os.getpid()}{path.suffix}") if is_taken(path) else path
