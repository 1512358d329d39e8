"""Graphs that Inductor lowered are kept for the next process, apart from those of real GPUs.

They are in the user's cache folder, by PyTorch's own key of a graph: its ops, the shapes of its
inputs, the settings and sources of the compiler. A folder for each GPU and release holds them.
Lines of the program are no part of a key; an entry has the names of nodes, which have the lines.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import astuple
from typing import Any

from torch._inductor.codecache import FxGraphCache
from torch._inductor.output_code import CompiledFxGraph

from ..._common.patches import Patches
from ..._common.real_files import on_disk
from ..._common.version import __version__
from ..hardware.gpu import GPU


def folder_for(gpu: GPU) -> str:
    """The folder of graphs that were lowered for a GPU."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    key = hashlib.sha256(repr((__version__, astuple(gpu))).encode()).hexdigest()
    return os.path.join(caches, "pytorch_memlab", "compiled", key[:16])


def install(patches: Patches, folder: str, load: Callable[[Any, Any], Any]) -> None:
    """Keep lowered graphs in a folder, until undone.

    Args:
        patches: to be undone.
        folder: that has them; it is made with the first.
        load: makes a function of what ``_compile_to_module_lines`` left in ``cache_linemap`` of a
            graph, and of the graph's constants.
    """
    candidates, write = FxGraphCache.iterate_over_candidates, FxGraphCache._write_to_local_cache

    def iterate(cls: Any, local: bool, remote_cache: Any, key: str) -> Iterator[Any]:
        with on_disk():
            entries = list(candidates(local, remote_cache, key))
        return iter(entries)

    def write_to_disk(*args: Any) -> None:
        with on_disk():
            write(*args)

    @patches.around(CompiledFxGraph, "after_deserialization")
    def after_deserialization(_original: Any, self: Any, constants: Any) -> str:
        self.current_callable = load(self.cache_linemap, constants.unwrap(self))
        self.source_code = ""
        return ""

    patches.set(FxGraphCache, "_get_tmp_dir", staticmethod(lambda: folder))
    patches.set(FxGraphCache, "iterate_over_candidates", classmethod(iterate))
    patches.set(FxGraphCache, "_write_to_local_cache", staticmethod(write_to_disk))
