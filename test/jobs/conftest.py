"""Fixtures of the tests of jobs."""

from __future__ import annotations

from textwrap import dedent

import pytest


@pytest.fixture
def write(tmp_path, monkeypatch):
    """A folder to work in, and a function that writes a file there and returns its name."""
    monkeypatch.chdir(tmp_path)

    def write_file(text, name="script.py"):
        (tmp_path / name).write_text(dedent(text))
        return name

    return write_file
