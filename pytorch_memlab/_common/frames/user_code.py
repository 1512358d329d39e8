"""The files of the user, and those of libraries."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Final

_LIBRARIES: Final = tuple(
    os.path.join(folder, "")
    for folder in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
)
_TYPED: Final = ("<ipython", "<stdin>", "<python-input", "In[")
"""Names of what was typed into a notebook or a session of Python; the last one in files."""
_PACKAGES: Final = ("site-packages", "dist-packages")

OWN_FOLDER: Final = os.path.join(str(Path(os.path.abspath(__file__)).parents[2]), "")
"""The folder of this package."""

FILES_OF_MODES: Final = tuple(
    os.path.join("torch", *parts)
    for parts in (("_ops.py",), ("overrides.py",), ("utils", "_python_dispatch.py"))
)
"""Files of torch on the way between an op and the modes that handle it."""


@lru_cache(maxsize=10_000)
def is_of_user(filename: str) -> bool:
    """True if a file is the user's own, not a library's, on whichever machine it was recorded.

    >>> is_of_user("/home/me/train.py"), is_of_user("/venv/lib/site-packages/torch/nn/modules.py")
    (True, False)
    """
    if not filename.endswith(".py") and not filename.startswith(_TYPED):
        return False
    parts = filename.replace("\\", "/").split("/")
    if any(part in _PACKAGES for part in parts) or filename.startswith(("<frozen", OWN_FOLDER)):
        return False
    return not filename.startswith(_LIBRARIES) and not _is_standard_library(parts)


def base_name(path: str) -> str:
    r"""The name of a file without its folder, of whichever system it was recorded on.

    >>> base_name("/home/me/train.py"), base_name("C:\\me\\train.py")
    ('train.py', 'train.py')
    """
    return os.path.basename(path.replace("\\", "/"))


def path_of_library(filename: str) -> str:
    """The part of a library's path that is the same for everybody; empty for other files.

    >>> path_of_library("/venv/lib/python3.11/site-packages/torch/_ops.py")
    'site-packages/torch/_ops.py'
    >>> path_of_library("/usr/lib/python3.11/runpy.py"), path_of_library("/home/me/train.py")
    ('lib/python3.11/runpy.py', '')
    """
    if filename.startswith(OWN_FOLDER):
        parts = [_PACKAGES[0], *OWN_FOLDER.split(os.sep)[-2:-1], filename[len(OWN_FOLDER) :]]
        return "/".join(parts).replace(os.sep, "/")
    parts = filename.replace("\\", "/").split("/")
    for place in reversed(range(len(parts) - 1)):
        if parts[place] in _PACKAGES or _is_standard_library(parts[place : place + 2]):
            return "/".join(parts[place:])
    folder = next((folder for folder in _LIBRARIES if filename.startswith(folder)), None)
    return "" if folder is None else f"lib/python3/{filename[len(folder) :]}".replace(os.sep, "/")


def _is_standard_library(parts: Sequence[str]) -> bool:
    """True if a path runs through ``lib/python3.x``, as on the machine that recorded it."""
    return any(left == "lib" and right.startswith("python3") for left, right in pairwise(parts))
