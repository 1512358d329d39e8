"""The section of the changelog on 0.3: what it says of names, versions and devices holds."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import torch
from support.python_process import run_python

import pytorch_memlab
from pytorch_memlab import LineProfiler, simulate
from pytorch_memlab.errors import NotAFunctionError

ROOT = Path(__file__).parents[2]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def rows():
    """The cells of the table, by those of its first column."""
    (section,) = re.findall(
        r"^## Migrating from 0\.3 \(\d{4}-\d\d-\d\d\)\n(.*?)^## ",
        CHANGELOG,
        re.DOTALL | re.MULTILINE,
    )
    cells = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:1] == "|"]
    return {first: rest for first, *rest in cells[2:]}


def test_the_oldest_versions_are_those_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    python = project["requires-python"].removeprefix(">=")
    (torch_,) = (one for one in project["dependencies"] if one.startswith("torch>="))
    (now,) = (cells[0] for first, cells in rows().items() if first.startswith("Python"))
    assert now == f"Python {python} and torch {torch_.removeprefix('torch>=')}, or later"


def test_names_that_are_gone_are_gone_and_those_in_their_place_are_there():
    (gone, cells) = next(row for row in rows().items() if row[1][0] == "gone")
    for name in re.findall(r"`(\w+)\.(\w+)`", gone):
        assert not hasattr(getattr(pytorch_memlab, name[0]), name[1]), name
    found = re.findall(r"`(\w+)\.(\w+)`", cells[1])
    assert len(found) == 2
    for name in found:
        assert hasattr(getattr(pytorch_memlab, name[0]), name[1]), name


def test_objects_that_are_no_function_are_errors():
    with pytest.raises(NotAFunctionError):
        LineProfiler().add_function(3)


def test_every_gpu_is_measured_unless_one_is_chosen():
    def step():
        return [torch.ones(1024, device=f"cuda:{index}") for index in range(2)]

    with simulate("1GiB", count=2):
        for chosen, count in (({}, 2), ({"target_gpu": 0}, 1)):
            with LineProfiler(step, **chosen) as prof:
                step()
            assert len(prof.display().report.tables) == count


def test_the_program_reads_its_own_peak_and_the_table_is_printed_once():
    program = """
import torch
from pytorch_memlab import LineProfiler, simulate

def step():
    torch.ones(1024, device="cuda")
    torch.ones(1, device="cuda")

with simulate("1GiB"):
    with LineProfiler(step) as prof:
        step()
    assert torch.cuda.max_memory_allocated() == 4096
    print(prof.display())
"""
    done = run_python(["-c", program])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("## step") == 1
