"""A file is replaced as a whole, or stays what it was."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from pathlib import Path

import pytest
from support.python_process import run_python

from pytorch_memlab import MemReporter
from pytorch_memlab._common.process.checked_file import check_writable, write_file
from pytorch_memlab.errors import UsageError

needs_posix = pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")


def files_in(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_a_file_is_made_with_the_permissions_of_any_new_file(tmp_path):
    before = os.umask(0o027)
    try:
        write_file(tmp_path / "new.txt", "text é\n")
    finally:
        os.umask(before)
    assert (tmp_path / "new.txt").read_bytes() == "text é\n".encode()
    assert stat.S_IMODE((tmp_path / "new.txt").stat().st_mode) == 0o640
    assert files_in(tmp_path) == ["new.txt"]


def test_an_older_file_is_replaced_and_keeps_its_permissions(tmp_path):
    file = tmp_path / "old.txt"
    file.write_text("old")
    file.chmod(0o604)
    number = file.stat().st_ino
    with file.open() as opened:
        write_file(file, "new")
        assert opened.read() == "old", "who reads the older file goes on reading it"
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("new", 0o604)
    assert file.stat().st_ino != number
    assert files_in(tmp_path) == ["old.txt"]


@needs_posix
def test_a_symbolic_link_stays_one(tmp_path):
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "target.txt", tmp_path / "link.txt"
    link.symlink_to(target)  # to nothing yet
    for text in ("one", "two"):
        write_file(link, text)
        assert link.is_symlink()
        assert target.read_text() == text
    assert files_in(tmp_path) == ["folder", "link.txt"]


@needs_posix
def test_what_is_no_regular_file_is_written_in_place(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True) as cat:
        write_file(pipe, "through the pipe")
        assert cat.communicate(timeout=60)[0] == "through the pipe"
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@needs_posix
def test_a_file_in_a_folder_that_is_closed_to_us_is_written_in_place(tmp_path, monkeypatch):
    file = tmp_path / "old.txt"
    file.write_text("old")
    really_open = os.open

    def refuse_new_ones(path, flags, *mode, **others):
        if flags & os.O_CREAT:  # root may make files anywhere
            raise PermissionError(errno.EACCES, "Permission denied")
        return really_open(path, flags, *mode, **others)

    monkeypatch.setattr(os, "open", refuse_new_ones)
    write_file(file, "new")
    assert file.read_text() == "new"
    with pytest.raises(UsageError, match=r"other.txt: Permission denied$"):
        write_file(tmp_path / "other.txt", "new")


# Files of the process may have so many bytes: a larger write fails, as on a full disk.
WRITERS = """
import resource, signal, sys
sys.dont_write_bytecode = True  # half a file of byte code would stay
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
from pytorch_memlab import LineProfiler, MemReporter
from pytorch_memlab.errors import UsageError
from pytorch_memlab._common.process.checked_file import CheckedFile
from pytorch_memlab.render import html, text
import torch

kept = torch.zeros(100)

def large():
    '''{padding}'''

for path in sys.argv[1:]:
    try:
        if path.endswith("reporter.txt"):
            MemReporter().report(file=path, details=True)
        elif path.endswith(".json"):
            LineProfiler(large).save(path, force=True)
        else:
            report = LineProfiler(large).display(large).report
            CheckedFile(path).write((html if path.endswith(".html") else text).render(report))
    except UsageError as error:
        print(error)
"""


@needs_posix
@pytest.mark.parametrize("limit", [0, 16])
def test_a_full_disk_leaves_what_was_there(limit, tmp_path):
    paths = [tmp_path / name for name in ("o.json", "o.html", "o.txt", "reporter.txt")]
    for path in paths:
        path.write_text("of before")
    script = tmp_path / "script.py"
    script.write_text(WRITERS.format(limit=limit, padding="x" * 100))
    reads, writes = os.pipe()  # a file could not take what it prints
    done = run_python([script, *paths], stdout=writes)
    os.close(writes)
    with open(reads) as printed:
        lines = printed.read().splitlines()
    assert done.returncode == 0
    assert lines == [f"cannot write {path}: File too large" for path in paths]
    assert [path.read_text() for path in paths] == ["of before"] * 4
    assert files_in(tmp_path) == sorted([*(path.name for path in paths), "script.py"])


def test_an_interrupt_leaves_what_was_there(tmp_path, monkeypatch):
    file = tmp_path / "old.txt"
    file.write_text("old")

    def interrupt(_descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_file(file, "new")
    assert file.read_text() == "old"
    assert files_in(tmp_path) == ["old.txt"]


def test_a_report_that_fails_halfway_leaves_what_was_there(tmp_path):
    class Fails(MemReporter):
        def print_stats(self, *args, **kwargs):
            print("half of it")
            raise KeyError("in a subclass")

    file = tmp_path / "old.txt"
    file.write_text("old")
    with pytest.raises(KeyError):
        Fails().report(file=file)
    assert file.read_text() == "old"


@pytest.mark.parametrize("path", ["", "no/such/folder.txt", "."])
def test_a_path_where_no_file_can_be_is_refused_beforehand(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = r"^cannot write .*: no such folder, or no right to write there$"
    for check in (check_writable, lambda path: MemReporter().report(file=path)):
        with pytest.raises(UsageError, match=message):
            check(path)


def test_names_that_are_no_text_are_written_as_they_are(tmp_path):
    write_file(tmp_path / "o.txt", os.fsdecode(b"caf\xe9"))
    assert (tmp_path / "o.txt").read_bytes() == b"caf\xe9"
