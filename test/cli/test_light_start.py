"""Help, version and usage errors are shown without loading torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

PROGRAM = """\
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

from pytorch_memlab.cli.command_line import COMMANDS
from pytorch_memlab.cli.main import main

lines = [[], ["--help"], ["--version"], ["train.py"], ["run", "--no-such", "x"], ["run"]]
for line in [*lines, *([name, "--help"] for name in COMMANDS)]:
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        try:
            main(line)
        except SystemExit:
            pass
    heavy = {"torch", "numpy", "pandas", "IPython", "rich", "jinja2", "matplotlib"}
    print(line, sorted(heavy & set(sys.modules)))
"""


def test_nothing_heavy_is_imported_for_help_version_and_usage_errors():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, cwd=ROOT, check=True
    )

    answers = done.stdout.splitlines()
    assert len(answers) > 6
    assert [line for line in answers if not line.endswith(" []")] == []
