"""Fixtures of the command line's tests."""

from __future__ import annotations

import tempfile
from textwrap import dedent

import pytest

from pytorch_memlab import LineProfiler, clear_global_line_profiler
from pytorch_memlab.cli.run.files import RunFiles
from pytorch_memlab.history.recorder import Recording


@pytest.fixture(autouse=True)
def _searches_end_early(short_search: None) -> None:
    """The heap of pytest is no part of the programs."""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """A folder to work in, and a function that writes a file there and returns its name."""
    monkeypatch.chdir(tmp_path)

    def write_file(text, name="script.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(dedent(text))
        return name

    yield write_file
    clear_global_line_profiler()


@pytest.fixture
def temporary_folder(tmp_path, monkeypatch):
    """The folder for what programs of ``fit`` print."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture(autouse=True)
def _history_is_asked_for(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blind, programs run with their history: on a GPU there are no holders without."""
    if request.config.getoption("--blind"):
        for kind in (LineProfiler, Recording):
            monkeypatch.setitem(kind.__init__.__kwdefaults__, "history", True)
        monkeypatch.setattr(RunFiles, "need_allocations", True)
