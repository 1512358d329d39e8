"""No test can hang: whatever it waits for, it fails after a while with every thread's stack."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]

HANGING = """
import subprocess, sys, threading, time

def test_hangs():
    thread = threading.Thread(target=waiting_in_a_thread, daemon=True)
    thread.start()
    {hangs}

def waiting_in_a_thread():
    threading.Event().wait()
"""

CHILD = "subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"


def run(tmp_path: Path, hangs: str) -> tuple[int, str]:
    """Exit code and output of a test run of this project's configuration, with shorter limits."""
    (tmp_path / "test_hanging.py").write_text(HANGING.format(hangs=hangs))
    limits = ("-o", "timeout=1", "-o", "faulthandler_timeout=4")
    place = ("-c", PROJECT / "pyproject.toml", "--rootdir", tmp_path, "-p", "no:cacheprovider")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *place, *limits, tmp_path],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=tmp_path,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    "hangs",
    ["while True: pass", "threading.Lock().acquire() and threading.Event().wait()", CHILD],
    ids=["a loop", "a lock", "a subprocess"],
)
def test_a_test_that_hangs_fails_and_shows_every_thread(hangs: str, tmp_path: Path) -> None:
    code, output = run(tmp_path, hangs)
    assert code == 1
    assert "1 failed" in output
    assert "Timeout (>1.0s)" in output
    assert hangs in output
    assert "in waiting_in_a_thread" in output


def test_a_test_that_swallows_its_end_ends_with_the_process(tmp_path: Path) -> None:
    began = time.monotonic()
    code, output = run(
        tmp_path,
        "while True:\n        try:\n            time.sleep(600)\n"
        "        except BaseException: pass",
    )
    assert code != 0
    assert time.monotonic() - began < 190
    assert "in test_hangs" in output
    assert "in waiting_in_a_thread" in output
