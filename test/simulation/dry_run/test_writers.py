"""No way that a program has of changing files changes one that was there before a dry run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from programs import writers

pytestmark = pytest.mark.timeout(900)  # one process tries all of them

_MADE = {"unpacked": ["./tree/inner/first"]}
"""New files without tensors, which are made for real."""
_TELLS_OF_ITS_OPENER = "with_opener"  # an event of ``open``, which does not open it then


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("writers")
    result = folder / "result.json"
    (folder / "files").mkdir()
    program = os.path.abspath(writers.__file__)
    done = subprocess.run(
        [sys.executable, program, folder / "files", result],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert result.exists(), done.stderr
    return json.loads(Path(result).read_text())


@pytest.mark.parametrize("name", writers.WRITERS)
def test_older_files_stay_and_the_program_sees_its_own_changes(results, name):
    result = results[name]
    if result["error"].startswith("skipped"):
        pytest.skip(result["error"])

    assert result["error"] == ""
    assert result["changed"] == _MADE.get(name, [])
    assert name == _TELLS_OF_ITS_OPENER or result["events"] == []


def test_the_audit_hook_sees_a_change(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "old"
    path.write_text("old")
    watch = writers.Watch()
    watch.paths = frozenset({str(path)})

    path.write_text("new")
    path.rename("newer")
    watch.paths = frozenset()

    assert [event.split()[0] for event in watch.events] == ["open", "os.rename"]
