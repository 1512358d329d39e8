"""The tests of the original, pytorch-memlab 0.3.2, pass unchanged on simulated GPUs.

They come from its source distribution on PyPI, and are kept in a cache.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from support.python_process import run_python

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "original_sdist"
SDIST = "pytorch_memlab-0.3.2.tar.gz"

INTERRUPTS_ON_PURPOSE = "test_line_report_profile_interrupt"

SIMULATED = """
import pytest
from pytorch_memlab.simulation import simulate

machine = simulate("24GiB", count=2, compute=False)  # these tests look at no value
machine.__enter__()  # before collection: skip marks ask whether there is CUDA

def pytest_unconfigure():
    machine.__exit__(None, None, None)
"""


def sdist() -> Path:
    """The downloaded source distribution."""
    if not (CACHE / SDIST).exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        (CACHE.parent / ".gitignore").write_text("*\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--no-binary", "pytorch-memlab", "--dest", str(CACHE), "pytorch-memlab==0.3.2"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not (CACHE / SDIST).exists():
            pytest.skip(f"the original cannot be had: {done.stderr.strip()[-200:]}")
    return CACHE / SDIST


def test_original_tests_pass_unchanged_on_two_simulated_gpus(tmp_path):
    with tarfile.open(sdist()) as archive:
        for member in archive.getmembers():
            _, _, name = member.name.partition("/")
            if name.startswith("test/") and name.endswith(".py"):
                target = tmp_path / "original" / name
                target.parent.mkdir(parents=True, exist_ok=True)
                content = archive.extractfile(member)
                assert content is not None
                target.write_bytes(content.read())
    (tmp_path / "simulated.py").write_text(SIMULATED)
    report = tmp_path / "report.xml"

    command = ["-m", "pytest", "-p", "simulated", "-p", "no:cacheprovider"]
    command += ["-c", os.devnull, "--rootdir", str(tmp_path), f"--junit-xml={report}"]
    command += ["-k", f"not {INTERRUPTS_ON_PURPOSE}", str(tmp_path / "original" / "test")]
    done = run_python(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
    )

    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    cases = ElementTree.parse(report).getroot().iter("testcase")
    outcomes = [(case.get("classname"), case.get("name"), *case) for case in cases]
    assert len(outcomes) == 17
    assert all(len(outcome) == 2 for outcome in outcomes), outcomes  # none was skipped
    assert "17 passed, 1 deselected" in done.stdout
