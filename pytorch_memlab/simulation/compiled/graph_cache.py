"""Graphs that Inductor lowered are kept for the next process, apart from those of real GPUs.

They are in the user's cache folder, by PyTorch's own key of a graph: its ops, the shapes of its
inputs, the settings and sources of the compiler. A folder for each GPU and release holds them.
Lines of the program are no part of a key; an entry has the names of nodes, which have the lines.

All folders together have at most so many bytes: the graphs that were used last stay.

Within ``torch._inductor.utils.fresh_cache()`` graphs are in the folder that it makes and removes.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import astuple
from typing import Any, Final

from torch._inductor.codecache import FxGraphCache, sha256_hash
from torch._inductor.output_code import CompiledFxGraph
from torch._inductor.utils import get_donated_idxs

from ..._common.patching.patches import Patches
from ..._common.process.checked_file import write_file
from ..._common.process.real_files import on_disk
from ..._common.process.version import __version__
from ...errors import UsageError
from ..hardware.gpu import GPU

MOST_BYTES: Final = 512 * 2**20
"""Of the graphs of all GPUs and releases; one takes about 0.1 MiB."""


def folder_for(gpu: GPU) -> str:
    """The folder of graphs that were lowered for a GPU."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    key = hashlib.sha256(repr((__version__, astuple(gpu))).encode()).hexdigest()
    return os.path.join(caches, "pytorch_memlab", "compiled", key[:16])


def _fresh_folder() -> str | None:
    """The folder of ``fresh_cache()``, if the program is within one."""
    # The function is a plain one that a program may have imported before: what it leaves in the
    # environment tells, a new temporary folder for both caches.
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR", "")
    is_temporary = os.path.basename(folder).startswith(tempfile.gettempprefix())
    of_kernels = os.environ.get("TRITON_CACHE_DIR")
    return folder if is_temporary and of_kernels == os.path.join(folder, "triton") else None


def install(
    patches: Patches,
    folder: str,  # that has them; it is made with the first
    # makes a function of what ``_compile_to_module_lines`` left in ``cache_linemap`` of a graph,
    # the wrapper's text first, and of the graph's constants
    load: Callable[[Any, Any], Any],
) -> None:
    """Keep lowered graphs in a folder, until undone."""

    def folder_of_graph() -> str:
        """PyTorch's key lacks which saved tensors the graph of a backward pass may overwrite."""
        donated = repr(get_donated_idxs() or [])
        fresh = _fresh_folder()
        root = os.path.join(fresh, "simulated", os.path.basename(folder)) if fresh else folder
        return os.path.join(root, hashlib.sha256(donated.encode()).hexdigest()[:16])

    candidates = FxGraphCache.iterate_over_candidates
    write_as_pytorch = FxGraphCache._write_to_local_cache
    kept = _Kept(os.path.dirname(folder))

    def iterate(cls: Any, local: bool, remote_cache: Any, key: str) -> Iterator[Any]:
        if _fresh_folder():  # a file of the program, which a dry run holds back
            return iter(list(candidates(local, remote_cache, key)))
        with on_disk():
            entries = list(candidates(local, remote_cache, key))
            _touch(FxGraphCache._get_tmp_dir_for_key(key))
        return iter(entries)

    def write_to_disk(key: str, content: bytes) -> None:
        if _fresh_folder():
            write_as_pytorch(key, content)
            return
        kept.write(FxGraphCache._get_tmp_dir_for_key(key), content)

    @patches.around(CompiledFxGraph, "after_deserialization")
    def after_deserialization(_original: Any, self: Any, constants: Any) -> str:
        self.current_callable = load(self.cache_linemap, constants.unwrap(self))
        self.source_code = self.cache_linemap[0]
        return ""

    patches.set(FxGraphCache, "_get_tmp_dir", staticmethod(folder_of_graph))
    patches.set(FxGraphCache, "iterate_over_candidates", classmethod(iterate))
    patches.set(FxGraphCache, "_write_to_local_cache", staticmethod(write_to_disk))
    patches.before_undo(kept.settle)


class _Kept:
    """The files of all graphs that are kept."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._written = 0  # bytes since the files were last counted
        self._has_warned = False

    def write(self, folder: str, content: bytes) -> None:
        """Keep a graph. What cannot be written is lowered again by the next process."""
        path = os.path.join(folder, sha256_hash(content))
        try:
            # Another process may remove the folder while it is empty.
            if not _put(path, content):
                _put(path, content, is_last=True)
        except (OSError, UsageError) as error:
            if not self._has_warned:
                self._has_warned = True
                warnings.warn(
                    f"compiled graphs are not kept for the next run: {error}", stacklevel=2
                )
            return
        self._written += len(content)
        if self._written > MOST_BYTES // 4:
            self.settle()

    def settle(self) -> None:
        """Remove the graphs that were not used for longest, if there are too many bytes."""
        if self._written:
            self._written = 0
            with on_disk():
                _prune(self._root, MOST_BYTES)


def _put(path: str, content: bytes, *, is_last: bool = False) -> bool:
    """Write a file in a folder that may not be there; True if it is written."""
    try:
        with on_disk():
            os.makedirs(os.path.dirname(path), exist_ok=True)
        write_file(path, content)
    except (OSError, UsageError):
        if is_last:
            raise
        return False
    return True


def _touch(folder: str) -> None:
    """Note that the graphs of a folder are in use."""
    with suppress(OSError):
        for entry in os.scandir(folder):
            os.utime(entry.path)


def _prune(root: str, most: int) -> None:
    """Remove the oldest files below a folder until no more than so many bytes are left."""
    # Other processes may write and remove files at the same time.
    files = []
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)
            with suppress(OSError):
                status = os.lstat(path)
                files.append((status.st_mtime_ns, status.st_size, path))
    left = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if left <= most:
            return
        left -= size
        with suppress(OSError):
            os.unlink(path)
            for folder in _above(path, root):
                os.rmdir(folder)


def _above(path: str, root: str) -> Iterator[str]:
    """The folders around a file, up to a root that is none of them."""
    folder = os.path.dirname(path)
    while folder != root:
        yield folder
        folder = os.path.dirname(folder)
