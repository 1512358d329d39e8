"""A file that cannot be written is refused beforehand, or leaves the tables and exit code 1."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.run_command import ROOT, command

from pytorch_memlab._common.process.checked_file import check_writable
from pytorch_memlab.cli.main import main
from pytorch_memlab.errors import UsageError

FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
SCRIPT = """\
import os, sys, threading, torch

def work():
    return torch.ones(1 << 18, device="cuda")

kept = work()
"""
NO_RIGHT = "no such folder, or no right to write there"
PLACES = {
    "link to a missing folder": ("dangling.txt", "dangling.txt, a link to {}/missing/x", NO_RIGHT),
    "link to itself": (
        "loop.txt",
        "loop.txt, a link to {}/loop.txt",
        "Too many levels of symbolic links",
    ),
    "link to a folder": ("tofolder.txt", "tofolder.txt, a link to {}/folder", NO_RIGHT),
    "missing folder": ("missing/x.txt", "missing/x.txt", NO_RIGHT),
    "folder": ("folder.txt", "folder.txt", NO_RIGHT),
    "folder that is a file": ("file/x.txt", "file/x.txt", NO_RIGHT),
    "name that is too long": ("x" * 300 + ".txt", "x" * 300 + ".txt", "File name too long"),
    "folder of the system": ("/proc/x.txt", "/proc/x.txt", NO_RIGHT),
}


@pytest.fixture
def places(write, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder.txt").mkdir()
    (tmp_path / "file").touch()
    os.symlink("missing/x", "dangling.txt")
    os.symlink("loop.txt", "loop.txt")
    os.symlink("folder", "tofolder.txt")
    return write


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("ending", ["txt", "html", "json", "pickle", "svg"])
def test_the_program_does_not_run(place, ending, places, tmp_path, capsys):
    name, called, problem = (each.replace(".txt", f".{ending}") for each in PLACES[place])
    for link in tmp_path.glob("*.txt"):
        link.rename(link.with_suffix(f".{ending}"))
    if place == "link to itself":
        Path(name).unlink()
        os.symlink(name, name)
    before = sorted(tmp_path.rglob("*"))

    assert main(["run", "-o", name, places("raise SystemExit('ran')")]) == 2

    message = f"cannot write {called.format(tmp_path)}: {problem}\n"
    assert capsys.readouterr().err == f"pytorch-memlab run: error: {message}"
    assert sorted(tmp_path.rglob("*")) == sorted([*before, tmp_path / "script.py"])


def test_a_link_to_a_file_that_can_be_made_is_followed(write, tmp_path):
    (tmp_path / "folder").mkdir()
    os.symlink("folder/x.txt", "o.txt")

    assert main(["run", "-o", "o.txt", write(SCRIPT)]) == 0

    assert Path("o.txt").is_symlink()
    assert "peak 1.0 MiB" in Path("folder/x.txt").read_text()


def test_a_folder_that_takes_no_files_is_refused(monkeypatch, tmp_path):
    inherited = os.open

    def read_only(path, flags, *args, **options):
        if flags & os.O_CREAT:
            raise OSError(30, "Read-only file system")
        return inherited(path, flags, *args, **options)

    monkeypatch.setattr("os.open", read_only)
    with pytest.raises(UsageError, match=NO_RIGHT):
        check_writable(tmp_path / "o.txt")


WITHOUT_SPACE = """\
import errno, os
def full(_):
    raise OSError(errno.ENOSPC, "No space left on device")
os.fsync = full
"""
ENDS = {
    "the end": ("", 1),
    "sys.exit()": ("sys.exit()", 1),
    "sys.exit(0)": ("sys.exit(0)", 1),
    "os._exit": ("os._exit(0)", 1),
    "the end of a thread": ("threading.Thread(target=print).start()", 1),
    "its own code": ("sys.exit(7)", 7),
    "its own code at once": ("os._exit(7)", 7),
    "an error": ("raise KeyError", 1),
    "a signal": ("os.kill(os.getpid(), 15)", -15),
}


@pytest.mark.parametrize("end", ENDS)
def test_the_tables_are_printed_and_the_exit_code_is_1_in_place_of_0(end, write):
    last, status = ENDS[end]
    done = command("-o", "o.json", write(f"{SCRIPT}{WITHOUT_SPACE}{last}\n"))

    assert done.returncode == status, done.stderr
    assert "cannot write o.json: No space left on device\n" in done.stderr
    assert done.stdout.lstrip("\n").startswith("peak 1.0 MiB on cuda:0")
    assert done.stdout.count("## work") == 1
    assert not Path("o.json").exists()


@FULL
@pytest.mark.parametrize("ending", ["txt", "html", "json", "pickle", "svg"])
def test_a_full_device(ending, write):
    os.symlink("/dev/full", f"o.{ending}")

    done = command("-o", f"o.{ending}", "--force", write(SCRIPT))

    assert done.returncode == 1
    assert f"cannot write o.{ending}: No space left on device\n" in done.stderr
    assert "## work" in done.stdout


@FULL
def test_a_report_of_an_error_of_a_thread(write):
    os.symlink("/dev/full", "o.json")
    last = (
        "threading.Thread(target=torch.empty, args=(1 << 60,), kwargs={'device': 'cuda'}).start()"
    )

    done = command("--oom-report", "o.json", write(SCRIPT + last))

    assert "cannot write o.json: No space left on device\n" in done.stderr
    assert done.returncode == 1


def test_more_than_max_peak_is_told_before_a_file_that_was_not_written(write):
    done = command("-o", "o.json", "--max-peak", "1KiB", write(SCRIPT + WITHOUT_SPACE))

    assert done.returncode == 3


def test_show_ends_with_2_if_its_file_cannot_be_written(write, monkeypatch, capsys):
    main(["run", "-o", "o.json", write(SCRIPT)])

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    assert main(["show", "o.json", "-o", "o.txt"]) == 2
    assert "## work" in capsys.readouterr().out


LOCALES = {
    "C": {"LANG": "C", "LC_ALL": "C"},
    "strict": {"PYTHONIOENCODING": "ascii:strict"},
    "surrogateescape": {"PYTHONIOENCODING": "latin-1:surrogateescape"},
}
UNICODE = """\
# -*- coding: utf-8 -*-
import torch, warnings

def größe():
    return torch.ones(1 << 18, device="cuda")  # 宽 \N{ROCKET}

kept = größe()
warnings.warn("宽")
"""


def in_locale(locale, *arguments):
    words = [sys.executable, "-m", "pytorch_memlab", *arguments]
    plain = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(ROOT)}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LC_")}
    return subprocess.run(
        words, env={**inherited, **plain, **LOCALES[locale]}, capture_output=True, check=False
    )


@pytest.mark.parametrize("locale", LOCALES)
def test_a_report_in_a_locale_that_is_not_utf_8(locale, write):
    Path("script.py").write_text(UNICODE, "utf-8")
    name = b"gr??e"
    if locale == "surrogateescape":
        name = "größe".encode("latin-1")

    done = in_locale(locale, "run", "-o", "o.json", "script.py")
    assert (done.returncode, done.stdout) == (0, b""), done.stderr
    for words in (["run", "script.py"], ["show", "o.json"], ["top", "o.json"], ["peak", "o.json"]):
        done = in_locale(locale, *words)
        assert done.returncode == 0, done.stderr
        assert b"Traceback" not in done.stderr
        assert name in done.stdout


def test_an_explanation_of_no_memory_in_a_locale_that_is_not_utf_8(write):
    wanted = 'return torch.ones(1 << 50, device="cuda")'
    Path("script.py").write_text(
        UNICODE.replace('return torch.ones(1 << 18, device="cuda")', wanted), "utf-8"
    )

    done = in_locale("C", "run", "--oom-report", "o.txt", "script.py")

    assert done.returncode == 1
    assert b"OutOfMemoryError" in done.stderr
    assert b"UnicodeEncodeError" not in done.stderr
    assert "größe" in Path("o.txt").read_text("utf-8")
