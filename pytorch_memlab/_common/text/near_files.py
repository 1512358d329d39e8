"""Files whose names are close to one that is not there."""

from __future__ import annotations

import difflib
import errno
import os
from itertools import islice
from typing import Final

from .quoted import visible

_MOST_FILES: Final = 10_000
"""Files of a folder that are compared: a folder of data may have millions."""


def why_not_opened(error: OSError, path: str, *, is_script: bool = False) -> str:
    """The reason of an error, and for a name that is not there the file that may be meant."""
    reason = error.strerror or str(error)
    near = nearest_file(path, is_script=is_script) if error.errno == errno.ENOENT else ""
    return f"{reason}: did you mean {near}?" if near else reason


def nearest_file(path: str, *, is_script: bool = False) -> str:
    """The file beside a path that is not there whose name is most like it; empty if none is."""
    # A script is compared with scripts, and another file with all that are none. What stands behind
    # the first dot is left out: else each ``.memlab.json`` would be like others.
    folder, name = os.path.split(path)
    try:
        with os.scandir(folder or os.curdir) as entries:
            names = [
                entry.name
                for entry in islice(entries, _MOST_FILES)
                if entry.name.endswith(".py") == is_script and entry.is_file()
            ]
    except (OSError, ValueError):  # no such folder, or a name that no file has
        return ""
    stem = _stem(name)
    stems = difflib.get_close_matches(stem, sorted({_stem(name) for name in names}), n=1)
    near = [other for other in names if _stem(other) in stems]
    near.sort(key=lambda other: (-difflib.SequenceMatcher(None, name, other).ratio(), other))
    return visible(os.path.join(folder, near[0])) if near else ""


def _stem(name: str) -> str:
    return name.partition(".")[0]
