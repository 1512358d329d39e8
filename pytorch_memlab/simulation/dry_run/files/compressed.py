"""Compressed files: data without values is recognised before it is compressed."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from functools import partial
from typing import Any

from ...._common.patching.after_import import AfterImport
from ...._common.patching.patches import Patches
from .marks import MARK, is_marked
from .opening import watched_file

_COMPRESSING = (
    ("gzip", "GzipFile"),
    ("bz2", "BZ2File"),
    ("lzma", "LZMAFile"),
    ("zipfile", "_ZipWriteFile"),
)
_WITH_OPEN = {"_builtin_open": ("bz2", "lzma", "tokenize"), "bltn_open": ("tarfile",)}
"""Modules that have ``open`` under another name."""


def install(imports: AfterImport, patches: Patches) -> None:
    for module, name in _COMPRESSING:
        imports.call(module, partial(_watch, name, patches))
    for name, modules in _WITH_OPEN.items():
        for module in modules:
            imports.call(module, partial(_set_open, name, patches))


def _set_open(name: str, patches: Patches, module: Any) -> None:
    if hasattr(module, name):
        patches.set(module, name, builtins.open)


def _watch(name: str, patches: Patches, module: Any) -> None:
    @patches.around(getattr(module, name), "write")
    def write(write_compressed: Callable[..., Any], self: Any, data: Any) -> Any:
        if is_marked(data) or MARK in bytes(data):
            watched = watched_file(self)
            if watched is not None:
                watched.divert()
        return write_compressed(self, data)
