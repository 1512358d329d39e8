"""A program that another one takes the place of leaves its report and its files."""

from __future__ import annotations

import json
import os

import pytest
from support.run_command import command

pytestmark = pytest.mark.skipif(os.name != "posix", reason="Windows starts another process")

START = """\
import os, sys, torch

kept = torch.ones(1 << 18, device="cuda")
print("first program", flush=True)
"""
CALLS = {
    "execv": 'os.execv("/bin/echo", ["echo", "second program"])',
    "execve": 'os.execve("/bin/echo", ["echo", "second program"], {})',
    "execlp": 'os.execlp("echo", "echo", "second program")',
    "execvpe": 'os.execvpe("echo", ["echo", "second program"], os.environ)',
}


@pytest.mark.parametrize("call", CALLS)
def test_all_files_are_written_before_the_other_program_runs(call, write, tmp_path):
    files = [tmp_path / name for name in ("out.json", "out.txt", "out.html")]
    outputs = [argument for file in files for argument in ("-o", str(file))]

    ours = command(*outputs, write(START + CALLS[call] + "\n"))

    assert (ours.returncode, ours.stdout) == (0, "first program\nsecond program\n")
    assert "the program ends here: " in ours.stderr
    assert "takes its place" in ours.stderr
    assert all(file.stat().st_size for file in files)
    assert json.loads(files[0].read_text())["devices"][0]["peak_active"] == 1 << 20


def test_the_report_is_printed_before_it(write):
    ours = command(write(START + CALLS["execv"] + "\n"))

    report, second, rest = ours.stdout.partition("second program")
    assert second
    assert rest == "\n"
    assert "peak 1.0 MiB on cuda:0" in report


def test_a_program_that_is_not_there_ends_nothing(write, tmp_path):
    middle = """\
try:
    os.execvp("no-such-program", ["no-such-program"])
except FileNotFoundError:
    later = torch.ones(1 << 20, device="cuda")
print("went on")
"""
    file = tmp_path / "out.json"

    ours = command("-o", str(file), write(START + middle))

    assert ours.stdout == "first program\nwent on\n"
    assert "takes its place" not in ours.stderr
    assert json.loads(file.read_text())["devices"][0]["peak_active"] == 5 << 20


def test_another_process_becomes_another_program_without_a_report(write, tmp_path):
    middle = """\
if not (child := os.fork()):
    os.execv("/bin/echo", ["echo", "second program"])
os.waitpid(child, 0)
later = torch.ones(1 << 20, device="cuda")
"""
    file = tmp_path / "out.json"

    ours = command("-o", str(file), write(START + middle))

    assert ours.stdout == "first program\nsecond program\n"
    assert "takes its place" not in ours.stderr
    assert json.loads(file.read_text())["devices"][0]["peak_active"] == 5 << 20
