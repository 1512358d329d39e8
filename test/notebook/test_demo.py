"""demo.ipynb runs from start to end in a kernel, and its outputs are those that it keeps."""

from __future__ import annotations

import os
import re
from pathlib import Path

import nbformat
import pytest

from pytorch_memlab.simulation.machine.torch_release import RELEASE

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "demo.ipynb"

_DIFFERS = [
    (re.compile(r"T_[0-9a-f]+"), "T_ID"),  # pandas' Styler numbers its tables at random
    (re.compile(r"in \d+\.\d{3}s"), "in TIME"),
    (re.compile(r"^Gen: .*$", re.MULTILINE), "Gen: HOST"),
    (re.compile(r"^Gen RAM Free .*$", re.MULTILINE), "Gen RAM HOST"),
    (re.compile(r"^\d\d:\d\d:\d\d$", re.MULTILINE), "TIME"),
    (re.compile(r"cleared \d+ objects"), "cleared OBJECTS"),
]


def text_of(output) -> str:
    """An output as text, with what depends on the machine and the moment taken out."""
    if output.output_type == "stream":
        text = output.text
    elif output.output_type == "error":
        text = f"{output.ename}: {output.evalue}"
    else:
        text = output.data.get("text/html", "") + output.data["text/plain"]
    for pattern, stand_in in _DIFFERS:
        text = pattern.sub(stand_in, text)
    return text


@pytest.mark.skipif(RELEASE < (2, 13), reason="the notebook keeps what torch 2.13 gives")
def test_it_runs_and_gives_the_outputs_that_it_keeps(monkeypatch):
    from scripts.run_notebook import executed

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(ROOT)]))
    kept = nbformat.read(NOTEBOOK, as_version=4)
    ran = executed(NOTEBOOK)
    for old, new in zip(kept.cells, ran.cells, strict=True):
        if old.cell_type == "code":
            assert [text_of(one) for one in new.outputs] == [text_of(one) for one in old.outputs], (
                old.source
            )


def test_it_shows_every_tool():
    source = "\n".join(cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells)
    for name in (
        "LineProfiler(",
        "%%mlrun",
        "MemReporter(",
        "IPyGPULogger(",
        "IPyExperiments(",
        "Courtesy(",
        "%simulate",
    ):
        assert name in source


def test_it_names_no_path_of_the_machine_that_made_it():
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert str(ROOT) not in text
    assert str(Path.home()) not in text
