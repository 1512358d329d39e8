"""The output of a program that ``fit`` ran."""

from __future__ import annotations

import os
import sys
import tempfile

from pytorch_memlab.cli.notices import tell


def output_folder() -> str:
    """A new folder for what the runs of a program print."""
    return tempfile.mkdtemp(prefix="pytorch-memlab-fit-")


def tell_error(error: str) -> None:
    """Print the traceback of a program on standard error; nothing if it is empty."""
    if error:
        print(f"\n{error}", file=sys.stderr, end="")


def tell_output(folder: str) -> None:
    """Say where the output of the program is; files without any are removed."""
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if not os.path.getsize(path):
            os.remove(path)
    if os.listdir(folder):
        tell(f"what the program printed is in {folder}")
    else:
        os.rmdir(folder)
