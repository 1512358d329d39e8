"""No two public classes have the same name: a reader of a type need not ask which one it is."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytorch_memlab

IN_SEVERAL_PLACES = {
    # A user imports the one of a framework, and calls it by the same name in all of them.
    "GPUMemoryMonitor": {
        "integrations/accelerate.py",
        "integrations/lightning.py",
        "integrations/pytorch_lightning.py",
    },
}


def test_the_name_of_a_public_class_stands_in_one_place():
    folder = Path(pytorch_memlab.__file__).parent
    places = defaultdict(list)
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(path.relative_to(folder).as_posix())
    repeated = {name: paths for name, paths in places.items() if len(paths) > 1}
    assert {name: set(paths) for name, paths in repeated.items()} == IN_SEVERAL_PLACES
    assert all(len(paths) == len(set(paths)) for paths in repeated.values())
