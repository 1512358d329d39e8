"""Files that are checked before there is anything to write."""

from __future__ import annotations

import os

import pytest

from pytorch_memlab._common.process.checked_file import CheckedFile
from pytorch_memlab.errors import UsageError


def test_the_file_stays_in_the_folder_of_the_check(tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    file = CheckedFile("o.txt")
    monkeypatch.chdir("other")

    assert file.write("text é") == "o.txt"

    assert (tmp_path / "o.txt").read_bytes() == "text é".encode()
    assert os.listdir() == []


def test_bytes_and_what_writes_them(tmp_path):
    file = CheckedFile(f"{tmp_path}/o.Bin")

    file.write(b"one")
    file.write(lambda out: out.write(b"two"))

    assert (tmp_path / "o.Bin").read_bytes() == b"two"
    assert file.ending == ".bin"


def test_an_older_file_with_something_in_it_is_refused(tmp_path):
    path = tmp_path / "run.json"
    path.write_text("")
    CheckedFile(str(path), keeps_older=True)
    path.write_text("older")

    with pytest.raises(UsageError, match=r"run\.json is there already: --force"):
        CheckedFile(str(path), keeps_older=True)


def test_a_file_that_comes_in_between_stays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = CheckedFile("./run.json", keeps_older=True)
    (tmp_path / "run.json").write_text("of another process")
    name = f"run.{os.getpid()}.json"

    assert file.write("own") == name

    assert (tmp_path / "run.json").read_text() == "of another process"
    assert (tmp_path / name).read_text() == "own"


def test_what_cannot_be_written_is_told(tmp_path, capsys):
    (tmp_path / "gone").mkdir()
    file = CheckedFile(f"{tmp_path}/gone/o.txt")
    (tmp_path / "gone").rmdir()

    assert file.write_or_tell(lambda: "text") is None

    problem = f"cannot write {tmp_path}/gone/o.txt: No such file or directory\n"
    assert capsys.readouterr() == ("", problem)


def test_content_that_cannot_be_made_leaves_the_older_file(tmp_path, capsys):
    path = tmp_path / "o.txt"
    path.write_text("older")

    def make() -> str:
        raise UsageError("nothing to draw")

    assert CheckedFile(str(path)).write_or_tell(make) is None

    assert path.read_text() == "older"
    assert capsys.readouterr().err == "nothing to draw\n"


def test_half_characters_are_written(tmp_path):
    file = CheckedFile(f"{tmp_path}/o.txt")

    file.write("a file name \udc80")
    assert (tmp_path / "o.txt").read_bytes() == b"a file name \x80"

    file.write("half a pair \ud800, a file name \udc80")
    assert (tmp_path / "o.txt").read_bytes() == b"half a pair ?, a file name ?"
