"""The job for GitHub Actions of the guide, step by step."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "guides"

NET = """\
import torch


def step(size):
    x = torch.ones(size << 18, device="cuda")
    return x * 2
"""

TESTS = """\
import net
import pytest


@pytest.mark.gpu_memory_limit("64 MiB", gpu="a100")
def test_step():
    net.step(3)
"""

COMMENT = """\
### GPU memory of the tests
```
peak of the memory in use in each test, from main.json to branch.json

 before    after    change          test
6.0 MiB  9.0 MiB  +3.0 MiB  +50.0%  test_net.py::test_step

lines that hold more or less in test_net.py::test_step:
    +3.0 MiB  net.py:6  step
              y = x + 1
```
"""

VALUES = {
    "github.event.pull_request.base.sha": "main",
    "github.event.number": "17",
    "github.repository": "me/project",
}


def block(path: Path, language: str, holding: str) -> str:
    """The fenced block of a page that has some text."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(), re.DOTALL | re.MULTILINE)
    return next(one for one in found if holding in one)


def steps() -> dict[str, str]:
    """The commands of the job by the names of its steps, with GitHub's values filled in."""
    yaml: Any = pytest.importorskip("yaml", reason="the documentation's packages have it")
    job = yaml.safe_load(block(GUIDES / "ci.md", "yaml", "jobs:"))["jobs"]["gpu-memory"]
    named = {one["name"]: one["run"] for one in job["steps"] if "name" in one}
    return {
        name: re.sub(r"\$\{\{ (.*?) \}\}", lambda found: VALUES[found[1]], text)
        for name, text in named.items()
    }


@pytest.fixture
def bash(tmp_path: Path) -> Any:
    """Runs commands in a project's clone, where pytest has the plugin, and gh writes to a file."""
    commands = {
        "pytest": f'exec "{sys.executable}" -m pytest -p pytorch_memlab.pytest_plugin "$@"',
        "pytorch-memlab": f'exec "{sys.executable}" -m pytorch_memlab "$@"',
        "gh": 'echo "$@" > gh.txt',
    }
    (tmp_path / "bin").mkdir()
    for name, text in commands.items():
        file = tmp_path / "bin" / name
        file.write_text(f"#!/bin/bash\n{text}\n")
        file.chmod(0o755)
    (tmp_path / "clone").mkdir()
    (tmp_path / "clone" / ".gitignore").write_text("__pycache__/\n.pytest_cache/\n")
    (tmp_path / "temp").mkdir()
    env = {
        **os.environ,
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "RUNNER_TEMP": str(tmp_path / "temp"),
        "GIT_CONFIG_GLOBAL": os.devnull,
    }

    def run(text: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", "-e", "-o", "pipefail", "-c", text]  # as GitHub runs it
        return subprocess.run(
            command, cwd=tmp_path / "clone", env=env, capture_output=True, text=True, check=False
        )

    return run


def test_the_job_compares_the_branch_with_the_base_and_writes_a_comment(bash, tmp_path):
    clone, temp = tmp_path / "clone", tmp_path / "temp"
    commit = "git add . && git -c user.name=me -c user.email=me@example.com commit -qm text"
    (clone / "net.py").write_text(NET)
    (clone / "test_net.py").write_text(TESTS)
    assert bash(f"git init -q -b main && {commit} && git checkout -q -b branch").returncode == 0
    (clone / "net.py").write_text(NET.replace("    return", "    y = x + 1\n    return"))
    assert bash(commit).returncode == 0

    done = {name: bash(text) for name, text in steps().items()}

    codes = {name: one.returncode for name, one in done.items()}
    assert codes == {
        "Measure the branch": 0,
        "Measure the base": 0,
        "Comment": 0,
        "Limit": 1,
    }, done
    assert (temp / "comment.md").read_text() == COMMENT
    assert (temp / "gh.txt").read_text() == (
        "pr comment 17 --repo me/project --edit-last --create-if-none --body-file comment.md\n"
    )
    assert done["Limit"].stderr == (
        "pytorch-memlab diff: test_net.py::test_step: the peak grew by 3.0 MiB (+50.0%), more than"
        " 5%\n"
    )
