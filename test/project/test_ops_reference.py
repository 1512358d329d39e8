"""The generated page on ops has the provenance of every op in the registry."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from pytorch_memlab.simulation.ops.core.op_info import ops_without_workspace
from pytorch_memlab.simulation.ops.core.registry import Provenance, provenances

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "ops.md"


@pytest.fixture(scope="module")
def generated():
    """The functions that `make docs` generates the page with."""
    return runpy.run_path(str(ROOT / "docs" / "conf.py"))


def test_the_table_has_each_op_once_with_its_provenance_and_source(generated):
    row = re.compile(r"\| `(.*?)` \| (.*?) \| (.*) \|\n")
    rows = [row.fullmatch(one).groups() for one in generated["op_rows"]()]
    assert [(name, known, files.replace("`", "")) for name, known, files in rows] == [
        (name, provenance.value, source) for name, provenance, source in provenances()
    ]
    assert ("aten::histc", "read in PyTorch's sources") in {
        (name, known) for name, known, _ in rows
    }


def test_the_summary_counts_the_ops_and_lists_those_without_workspace(generated):
    known = [provenance for _, provenance, _ in provenances()]
    text = generated["op_summary"]()
    for one in Provenance:
        assert f"| {one.value} | {known.count(one)} |\n" in text
    assert set(re.findall(r"`(\w+)`", text)) == ops_without_workspace()


def test_the_page_includes_what_is_generated_and_explains_each_provenance():
    text = PAGE.read_text()
    assert re.findall(r"^```\{include\} \.\./_generated/(\w+)\.md$", text, re.MULTILINE) == [
        "ops_summary",
        "ops",
    ]
    assert re.findall(r"^- \*\*(.*?)\*\*", text, re.MULTILINE) == [one.value for one in Provenance]
