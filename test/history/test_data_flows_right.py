"""The history knows the packages to its left, and none to its right."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "pytorch_memlab"
TO_THE_LEFT = {
    "_common", "devices", "errors", "history", "storages", "simulation", "tensors", "uninterrupted",
}  # fmt: skip


def imported_by(file):
    """The parts of the package that a file imports anywhere in it, also in functions."""
    folder = file.parent.relative_to(PACKAGE.parent).parts
    for node in ast.walk(ast.parse(file.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom):
            base = list(folder[: len(folder) + 1 - node.level]) if node.level else []
            module = [*base, *(node.module or "").split(".")]
            names = [[*module, alias.name] for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        yield from (parts[1] for parts in names if parts[0] == "pytorch_memlab" and parts[1:])


def test_no_module_imports_what_is_to_its_right():
    files = sorted((PACKAGE / "history").glob("*.py"))
    assert len(files) > 10
    assert {part for file in files for part in imported_by(file)} <= TO_THE_LEFT


def test_tensors_know_nothing_of_the_history():
    files = sorted((PACKAGE / "tensors").glob("*.py"))
    assert {part for file in files for part in imported_by(file)} <= {"_common", "tensors"}


def test_no_package_of_data_imports_a_renderer():
    files = [file for part in ("reporter", "profiles") for file in (PACKAGE / part).glob("*.py")]
    assert len(files) > 15
    assert "render" not in {part for file in files for part in imported_by(file)}
