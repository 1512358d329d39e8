"""Commands that a program starts in a dry run: carried out, run as they are, or refused."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from support.fit_command import fitted

from pytorch_memlab import simulate
from pytorch_memlab.cli.main import main
from pytorch_memlab.errors import CommandRefusedError
from pytorch_memlab.simulation.dry_run.files.commands import (
    Kind,
    kind_of,
    kind_of_all,
    simple_commands,
)
from pytorch_memlab.simulation.dry_run.files.file_commands import can_carry_out

on_disk = os.listdir  # not the one that a run replaces
WRITES = [sys.executable, "-I", "-c", "open('by_command', 'w').write('x')"]
"""A Python that does not join the overlay."""

READS = """\
git rev-parse HEAD
git -C folder status --porcelain
git branch --show-current
git config --get remote.origin.url
git remote -v
/usr/bin/nvidia-smi --query-gpu=name --format=csv
uname -p
/sbin/ldconfig -p
hostname -f
date +%s
gcc -O3 -shared -o a.so a.c
x86_64-linux-gnu-g++-12 -Wl,-t -o out -lfoo
nvcc --version
whatever --version
ls -la
cat file
"""
MAY_WRITE = """\
git checkout main
git config user.name me
git branch -D main
git remote add origin x
git diff --output=file
nvidia-smi -pm 1
nvidia-smi --gpu-reset
ldconfig
ldconfig -n folder
hostname name
date -s 2026
env rm file
find . -delete
sed -i s/a/b/ file
sort -o file file
tar xf file
wget address
make
python3 -I script.py
python3 -S -c pass
"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A dry run in a new folder, in which ``old`` is there already."""
    monkeypatch.chdir(tmp_path)
    Path("old").write_text("old")
    with simulate("8TiB", compute=False) as machine:
        yield machine


@pytest.mark.parametrize("command", READS.splitlines())
def test_commands_that_only_read_and_compilers(command):
    assert kind_of(shlex.split(command)) is Kind.READS


@pytest.mark.parametrize("command", MAY_WRITE.splitlines())
def test_commands_that_may_write(command):
    assert kind_of(shlex.split(command)) is Kind.UNKNOWN


def test_pythons_and_their_scripts(tmp_path):
    script = tmp_path / "torchrun"
    script.write_text("#!/usr/bin/env python3\n")
    for words in ([sys.executable, "x.py"], ["python3.12", "-u", "-m", "x"], [str(script)]):
        assert kind_of(words) is Kind.PYTHON
    script.write_text("#!/bin/sh\n# python\n")
    assert kind_of([str(script)]) is Kind.UNKNOWN


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("cat a | grep b 2>/dev/null; uname > /dev/null 2>&1", Kind.READS),
        ("A=1 B=2 ls && wc -l < file", Kind.READS),
        ("cat a > b", Kind.UNKNOWN),
        ("cat a >> b", Kind.UNKNOWN),
        ("ls; wget x", Kind.UNKNOWN),
        ("ls $(rm a)", Kind.UNKNOWN),
        ("echo `rm a`", Kind.UNKNOWN),
        ("ls\nrm a", Kind.UNKNOWN),
        ("(cd a; make)", Kind.UNKNOWN),
        ("echo 'a", Kind.UNKNOWN),
        ("cp a b && ls", Kind.CARRIED_OUT),
        ("echo 'x; rm -rf y'", Kind.READS),
    ],
)
def test_lines_of_a_shell(line, kind):
    assert kind_of_all(simple_commands(line)) is kind


def test_options_that_are_not_carried_out():
    assert can_carry_out("cp", ["-rf", "--preserve", "a", "b"]) is False
    assert can_carry_out("cp", ["-rfv", "a", "b"]) is True
    assert can_carry_out("mkdir", ["-p", "-m", "700", "a"]) is True
    assert can_carry_out("ln", ["-sfn", "a", "b"]) is True
    assert can_carry_out("rm", ["-i", "a"]) is False


def test_the_first_command_that_may_write_is_named_and_all_are_in_the_report(machine, capsys):
    subprocess.run(["uname"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(WRITES, check=True)
    subprocess.run([*WRITES, "again"], check=True)

    name = " ".join(WRITES)
    assert capsys.readouterr().err == (
        f"pytorch-memlab: dry run: {name} runs as it is, and what it writes is on the disk; so do"
        " all commands that may change files\n"
    )
    assert machine.kept_files.started_commands() == ((name, False), (f"{name} again", False))
    assert sorted(on_disk()) == ["by_command", "old"]


@pytest.mark.parametrize(
    "start",
    [
        lambda: subprocess.run(WRITES, check=True),
        lambda: subprocess.Popen(["x", *WRITES[1:]], executable=WRITES[0]),
        lambda: subprocess.run("make all", shell=True, check=True),
        lambda: subprocess.run(["sh", "-c", "make all"], check=True),
        lambda: os.system("echo x > by_command"),
        lambda: os.popen("echo x > by_command"),
        lambda: os.posix_spawn(WRITES[0], WRITES, os.environ),
        lambda: os.execv(WRITES[0], WRITES),
        lambda: os.execvp(WRITES[0], WRITES),
    ],
)
def test_a_command_that_may_write_is_refused_if_the_run_says_so(machine, start):
    machine.kept_files.refuse_commands()

    with pytest.raises(CommandRefusedError, match=r"was not started: .* \(--allow-writes lets"):
        start()

    assert issubclass(CommandRefusedError, FileNotFoundError)
    assert on_disk() == ["old"]
    assert [refused for _, refused in machine.kept_files.started_commands()] == [True]


def test_other_commands_run_where_some_are_refused(machine):
    machine.kept_files.refuse_commands()
    torch.save(torch.empty(1000, 1000, device="cuda"), "new")

    subprocess.run(["cp", "new", "old"], check=True)
    assert subprocess.check_output(["cat", "old"]) == Path("new").read_bytes()
    assert subprocess.run("ls nowhere 2> /dev/null", shell=True, check=False).returncode == 2
    subprocess.run([sys.executable, "-c", "open('old', 'w').write('child')"], check=True)
    assert Path("old").read_text() == "child"
    assert subprocess.run(["rm", "nowhere"], check=False, stderr=-3).returncode == 1
    assert machine.kept_files.started_commands() == ()
    assert on_disk() == ["old"]


def test_a_command_says_what_was_wrong(machine):
    torch.save(torch.empty(1000, device="cuda"), "new")
    done = subprocess.run(["rmdir", "nowhere"], stderr=-1, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "rmdir: 'nowhere': No such file or directory\n"


def test_a_command_keeps_its_words_and_its_folder(machine):
    os.mkdir("folder")
    done = subprocess.run(["cp", "-v", "../old", "copy"], cwd="folder", stdout=-1, check=True)
    assert done.args == ["cp", "-v", "../old", "copy"]
    assert done.stdout == b"'../old' -> 'copy'\n"
    assert Path("folder/copy").read_text() == "old"


def test_fit_starts_no_command_that_may_write_unless_it_is_allowed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    Path("old").write_text("old")
    Path("script.py").write_text(
        "import subprocess, torch\n"
        "kept = torch.zeros(1000, device='cuda')\n"
        "try:\n"
        "    subprocess.run(['dd', 'of=old', 'if=/dev/null'], stderr=subprocess.DEVNULL)\n"
        "except FileNotFoundError:\n"
        "    open('old', 'a').write('more')\n"
    )

    code, out, _ = fitted(capsys, "--gpu", "t4", "script.py")
    assert code == 0
    assert "\nnot started without --allow-writes (1 command): dd of=old if=/dev/null\n" in out
    assert "\nleft as it was by the dry run (1 path): old\n" in out
    assert Path("old").read_text() == "old"

    code, out, _ = fitted(capsys, "--allow-writes", "--gpu", "t4", "script.py")
    assert code == 0
    assert "--allow-writes" not in out
    assert Path("old").read_text() == ""


def test_run_names_what_it_started_below_the_report(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text("import os, torch\nos.system('echo x > new')\n")

    assert main(["run", "--dry-run", "--gpu", "t4", "script.py"]) == 0

    told = capsys.readouterr()
    assert "\nnot held back by the dry run (1 command): echo x > new\n" in told.out
    assert told.err.count("echo x > new runs as it is") == 1
    assert Path("new").read_text() == "x\n"


def test_a_link_without_a_place_is_made_here_and_a_folder_that_is_there_stays(machine):
    subprocess.run(["mkdir", "-p", "a/b"], check=True)
    subprocess.run(["mkdir", "-p", "a/b"], check=True)
    subprocess.run(["ln", "-s", "a/b"], check=True)

    assert os.readlink("b") == "a/b"
