"""``make recording``: the file of ``verify`` becomes a recording that tests replay."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from recorded_programs.streams import FOLDER

SCRIPT = Path(__file__).parents[2] / "scripts" / "add_recording.py"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of one recording and its table."""
    folder = tmp_path / "recordings"
    folder.mkdir()
    (folder / "README.md").write_text(
        "# Traces\n\n| file | program | events | peak |\n|---|---|---|---|\n"
        "| `attention` | attention | 71 | 3098.63 MiB |\n"
        "| `zeros` | zeros | 2 | 1.00 MiB |\n\nEnd\n"
    )
    return folder


def added(file: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--folder", str(folder), str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_recording_gets_its_row(tmp_path: Path, folder: Path) -> None:
    import gzip
    import json

    trace = json.loads(gzip.decompress((FOLDER / "attention_from_start.json.gz").read_bytes()))
    trace["versions"] = {"gpu": "NVIDIA A100", "torch": "2.13.0"}
    file = tmp_path / "lstm.json.gz"
    file.write_bytes(gzip.compress(json.dumps(trace).encode()))
    done = added(file, folder)
    assert done.returncode == 0, done.stderr
    rows = (folder / "README.md").read_text().splitlines()
    assert rows[4:7] == [
        "| `attention` | attention | 71 | 3098.63 MiB |",
        "| `lstm` | a program on NVIDIA A100, torch 2.13.0 | 71 | 3098.63 MiB |",
        "| `zeros` | zeros | 2 | 1.00 MiB |",
    ]
    assert (folder / "lstm.json.gz").read_bytes() == file.read_bytes()
    again = added(file, folder)
    assert (again.returncode, again.stderr) == (
        1, "there is a recording lstm: name this one otherwise\n"
    )  # fmt: skip


def test_what_is_no_recording_changes_nothing(tmp_path: Path, folder: Path) -> None:
    before = (folder / "README.md").read_text()
    text = tmp_path / "lstm.json.gz"
    text.write_text("text")
    capital = shutil.copy(FOLDER / "attention_from_start.json.gz", tmp_path / "My model.json.gz")
    for file in (text, Path(capital), tmp_path / "nothing.json.gz"):
        assert added(file, folder).returncode == 1
    assert (folder / "README.md").read_text() == before
    assert [path.name for path in folder.iterdir()] == ["README.md"]
