"""Ctrl-C before a program runs ends the process as it ends one without a handler."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# As in a terminal: pytest may run where Ctrl-C is ignored.
START = """\
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from pytorch_memlab.cli.main import entry
entry()
"""


def interrupted_command(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", START, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])},
        check=False,
    )


@pytest.mark.skipif(os.name != "posix", reason="the exit codes of POSIX")
@pytest.mark.parametrize("name", ["run", "fit"])
def test_while_torch_is_imported_nothing_is_said_and_no_handler_runs(name, tmp_path):
    (tmp_path / "torch.py").write_text(
        "import signal\n"
        "try:\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "except KeyboardInterrupt:\n"  # what some libraries make of it is another error
        "    raise ImportError('cannot load module more than once per process')\n"
    )
    (tmp_path / "script.py").write_text("print('ran')\n")

    done = interrupted_command(name, "script.py", folder=tmp_path)

    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_a_module_of_the_program_that_is_imported_first_can_handle_it(tmp_path):
    (tmp_path / "helper.py").write_text(
        "import signal\n"
        "try:\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "except KeyboardInterrupt:\n"
        "    print('cleaned up')\n"
        "def work(): pass\n"
    )
    (tmp_path / "script.py").write_text("print('ran')\n")

    done = interrupted_command("run", "-f", "helper:work", "script.py", folder=tmp_path)

    assert done.stdout.startswith("cleaned up\nran\n")
    assert done.returncode == 0
