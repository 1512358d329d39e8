"""``make demo`` shows the product: an error, a remedy that was tried, a page, the first table."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAKE = shutil.which("make")

pytestmark = pytest.mark.skipif(
    MAKE is None or not (Path(sys.prefix) / "bin" / "pytorch-memlab").exists(),
    reason="make and the command are needed",
)


@pytest.fixture
def clone(tmp_path):
    """The files of a clone that the demo needs."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


def demo(clone):
    """Run it with the environment of this process in place of one that it makes."""
    (clone / "installed").touch()
    variables = [f"VENV={sys.prefix}", "INSTALLED=installed"]
    return subprocess.run([MAKE, "demo", *variables], cwd=clone, capture_output=True, text=True)


def test_the_demo_ends_well_though_its_example_runs_out_of_memory(clone):
    done = demo(clone)
    assert done.returncode == 0, done.stderr
    assert "Out of memory on cuda:0 at out_of_memory.py:11" in done.stderr
    assert re.search(r"^ +tried: peak \S+ GiB -> \S+ MiB", done.stderr, re.MULTILINE)
    assert "Out of memory at out_of_memory.py:11." in (clone / "build" / "demo.html").read_text()
    before, _, table = done.stdout.partition("## outer\n")
    assert "The page is build/demo.html" in before
    assert "     120.00K          2.00M   10      inner()\n" in table


def test_the_demo_fails_if_its_example_does_not_run(clone):
    (clone / "examples").unlink()
    (clone / "examples").mkdir()
    done = demo(clone)
    assert done.returncode != 0
    assert "The page is" not in done.stdout
