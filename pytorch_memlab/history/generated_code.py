"""Frames in files that PyTorch's compiler wrote: named by what they run, not by a path of a cache.

Such a file names variables of the program, and no lines of it. Its bytes count at the line that
calls the compiled code, whose frame is further out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from typing import Final

from .model import Frame

_GENERATED: Final = re.compile(r"[\\/]torchinductor_[^\\/]*[\\/]\w{2}[\\/]c\w+\.py$")
_LAUNCH: Final = re.compile(r"(\w+)\.run\(|(extern_kernels\.\w+)\(|torch\.ops\.([\w.]+)\(")
_SOURCES: Final = re.compile(r"# Topologically Sorted Source Nodes: \[([^\]]*)\]")
_LONGEST: Final = 4_000_000
"""Characters of a file that are read."""

COMPILED_CODE: Final = "compiled code"


def named(frame: Frame) -> Frame:
    """A frame as it is, or for one in a generated file what it runs, in no file."""
    if frame.name != "call" or not _GENERATED.search(frame.filename):
        return frame
    launch, names = _next_launch(frame.filename, frame.line)
    of_names = f" of {names}" if names else ""
    return Frame("", 0, f"{COMPILED_CODE}: {launch}{of_names}" if launch else COMPILED_CODE)


def _next_launch(file: str, line: int) -> tuple[str, str]:
    """The first kernel that a file launches from a line on, and the variables that it computes."""
    names = ""
    for text in islice(_lines(file), max(line - 1, 0), None):
        sources, launch = _SOURCES.search(text), _LAUNCH.search(text)
        if sources:
            names = sources[1]
        if launch:
            return launch[1] or launch[2] or launch[3], names
        if text.lstrip().startswith("return "):
            break
    return "", ""


@lru_cache(maxsize=64)
def _lines(file: str) -> Sequence[str]:
    if not os.path.isfile(file):  # a snapshot may name anything
        return ()
    try:
        with open(file, encoding="utf-8", errors="replace") as source:
            return source.read(_LONGEST).splitlines()
    except OSError:
        return ()
