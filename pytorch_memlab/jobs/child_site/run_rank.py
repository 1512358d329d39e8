"""``pytorch-memlab`` in the process of a rank, from where the launching process has the package."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from importlib.machinery import PathFinder

_PACKAGE = "pytorch_memlab"
_FOLDER = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))


def _load_package() -> None:
    spec = PathFinder.find_spec(_PACKAGE, [_FOLDER])
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[_PACKAGE] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


if __name__ == "__main__":
    if _PACKAGE not in sys.modules:  # which an editable installation may import
        _load_package()
    importlib.import_module(f"{_PACKAGE}.cli.main").entry()
