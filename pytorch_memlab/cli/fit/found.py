"""The findings of the runs of a program, which all kinds of ``fit`` show in the same order."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytorch_memlab._common.standard_output import print_to_stdout
from pytorch_memlab.cli.exit_codes import INTERRUPTED
from pytorch_memlab.cli.notices import tell

if TYPE_CHECKING:
    from pytorch_memlab.fitting.trial import Settings


@dataclass(frozen=True, slots=True)
class Found:
    """The findings of all runs, or of those before Ctrl-C."""

    text: str
    exit_code: int
    error: str = ""  # the traceback of the program; empty without one
    interrupted: str = ""  # what is said of Ctrl-C; empty if it was not pressed
    draw: Callable[[], object] = lambda: None


def show(find: Callable[[Settings], Found], settings: Settings) -> int:
    """Run a program with a folder for what it prints, and show what is found; the exit code."""
    folder = tempfile.mkdtemp(prefix="pytorch-memlab-fit-")
    found = find(replace(settings, output=folder))
    print_to_stdout(found.text)
    _tell_output(folder)
    found.draw()
    if found.error:
        print(f"\n{found.error}", file=sys.stderr, end="")
    if found.interrupted:
        tell(found.interrupted)
        return INTERRUPTED
    return found.exit_code


def _tell_output(folder: str) -> None:
    """Say where the output of the program is; files without any are removed."""
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if not os.path.getsize(path):
            os.remove(path)
    if os.listdir(folder):
        tell(f"what the program printed is in {folder}")
    else:
        os.rmdir(folder)
