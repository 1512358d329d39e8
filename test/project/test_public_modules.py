"""The top level has public modules, which say what is public, and packages; the rest is private."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import pytorch_memlab

PUBLIC = (
    "errors",
    "gpu_mem",
    "imu",
    "mem_reporter",
    "mem_trace",
    "out_of_memory",
    "pytest_plugin",
    "utils",
)
DATA = ("columns", "memory_fields", "records")
"""Modules of plain data that most packages share."""


def test_no_other_module_is_at_the_top_level():
    folder = Path(pytorch_memlab.__file__).parent
    found = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("__")}
    assert found == {*PUBLIC, *DATA}


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_module_lists_its_names_and_describes_them(name):
    module = importlib.import_module(f"pytorch_memlab.{name}")
    assert module.__doc__
    assert len(module.__all__) == len(set(module.__all__)) > 0
    for public in module.__all__:
        value = getattr(module, public)
        if callable(value):
            assert value.__doc__, public


def test_public_names_of_the_package_are_public_in_their_modules():
    for name, home in pytorch_memlab._HOMES.items():
        if home in PUBLIC:
            assert name in importlib.import_module(f"pytorch_memlab.{home}").__all__, name
