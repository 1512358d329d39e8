"""A file that is not there: the message names the one beside it that may be meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytorch_memlab._common.text.near_files import nearest_file
from pytorch_memlab.cli.main import main

_FILES = (
    "evaluate.py",
    "main.memlab.json",
    "snapshot.pickle",
    "train.memlab.json",
    "train.py",
    "train.txt",
)
_SCRIPT = "cannot open the script {}: No such file or directory: did you mean {}?\n"
_SAVED = "cannot read {}: No such file or directory: did you mean {}?\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files of no content: nothing reads them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "trains.py").mkdir()  # a folder is not what is meant
    for name in _FILES:
        (tmp_path / name).touch()
        (tmp_path / "runs" / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "trian.py", "--lr", "1"], _SCRIPT.format("trian.py", "train.py")),
        (["run", "train"], _SCRIPT.format("train", "train.py")),
        (["run", "runs/evalute.py"], _SCRIPT.format("runs/evalute.py", "runs/evaluate.py")),
        (["fit", "trian.py"], _SCRIPT.format("trian.py", "train.py")),
        (
            ["verify", "--recorded", "snapshot.pickle", "trian.py"],
            _SCRIPT.format("trian.py", "train.py"),
        ),
        (
            ["verify", "--recorded", "snapshoot.pickle", "train.py"],
            _SAVED.format("snapshoot.pickle", "snapshot.pickle"),
        ),
        (["show", "trian.memlab.json"], _SAVED.format("trian.memlab.json", "train.memlab.json")),
        (["show", "train.json"], _SAVED.format("train.json", "train.memlab.json")),
        (["top", "runs/mian.json"], _SAVED.format("runs/mian.json", "runs/main.memlab.json")),
        (["peak", "snapshto.pickle"], _SAVED.format("snapshto.pickle", "snapshot.pickle")),
        (["replay", "snapshto.pickle"], _SAVED.format("snapshto.pickle", "snapshot.pickle")),
        (
            ["diff", "trian.memlab.json", "main.memlab.json"],
            _SAVED.format("trian.memlab.json", "train.memlab.json"),
        ),
        (
            ["run", "other.py"],
            "cannot open the script other.py: No such file or directory\n",
        ),
        (["show", "x.memlab.json"], "cannot read x.memlab.json: No such file or directory\n"),
        (
            ["show", "none/train.memlab.json"],
            "cannot read none/train.memlab.json: No such file or directory\n",
        ),
    ],
)
def test_the_file_that_may_be_meant_is_named(
    arguments: list[str], said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr() == ("", f"pytorch-memlab {arguments[0]}: error: {said}")


def test_a_name_with_control_characters_is_shown_without_them(folder: Path) -> None:
    (folder / "mo\x1b[1mdel.py").touch()
    assert nearest_file("mo[1mdel.py", is_script=True) == "mo\ufffd[1mdel.py"


def test_a_path_that_no_folder_can_have_is_like_none() -> None:
    assert nearest_file("a\0b/train.py", is_script=True) == ""
