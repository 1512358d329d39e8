"""Interpreters for the tests that need another Python than the suite's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache

import pytest

PYTHONS_VARIABLE = "PYTORCH_MEMLAB_TEST_PYTHONS"


@cache
def find_pythons() -> dict[tuple[int, int], str]:
    """Version -> interpreter: the suite's, those of the variable, and ``python3.x`` on the path."""
    found = {sys.version_info[:2]: sys.executable}
    named = os.environ.get(PYTHONS_VARIABLE, "").split(os.pathsep)
    on_path = [shutil.which(f"python3.{minor}") for minor in range(10, 16)]
    for python in [*named, *on_path]:
        version = _version(python) if python else None
        if version is not None:
            found.setdefault(version, python or "")
    return found


def _version(python: str) -> tuple[int, int] | None:
    script = "import sys; print(*sys.version_info[:2])"
    done = subprocess.run([python, "-c", script], capture_output=True, text=True, check=False)
    if done.returncode:
        return None
    major, minor = done.stdout.split()
    return int(major), int(minor)


def python_of(version: tuple[int, int]) -> str:
    """The interpreter of a version; skips the test where there is none."""
    if version not in find_pythons():
        pytest.skip(f"no Python {version[0]}.{version[1]}: name one in {PYTHONS_VARIABLE}")
    return find_pythons()[version]


needs_monitoring = pytest.mark.parametrize("version", [(3, 12), (3, 13)], ids=["3.12", "3.13"])
