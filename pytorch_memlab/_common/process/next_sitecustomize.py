"""The ``sitecustomize`` that a process would have run without one of this package.

Those of this package load this file by its path, before the package can be imported.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import PathFinder


def run_next_sitecustomize(folder: str) -> None:
    """Run the next ``sitecustomize`` on the path, as if a folder were not on it."""
    sys.path[:] = [entry for entry in sys.path if entry != folder]
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
