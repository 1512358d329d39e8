"""The examples in docstrings of the package give what they show.

`--doctest-modules` would look for examples in each file of the package and the tests, for seconds.
"""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted((ROOT / "pytorch_memlab").rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


def test_there_are_examples():
    assert len(MODULES) > 20


@pytest.mark.parametrize("name", MODULES)
def test_examples_give_what_they_show(name, capsys):
    module = importlib.import_module(name.removesuffix(".__init__"))
    found = doctest.testmod(module)
    assert (found.failed, capsys.readouterr().out) == (0, "")
    assert found.attempted
