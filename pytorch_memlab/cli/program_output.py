"""What a program printed while ``fit`` ran it."""

from __future__ import annotations

import os

from pytorch_memlab.cli.notices import tell


def tell_output(folder: str) -> None:
    """Say where the output of the program is; files without any are removed.

    Args:
        folder: with a file for each run.
    """
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if not os.path.getsize(path):
            os.remove(path)
    if os.listdir(folder):
        tell(f"what the program printed is in {folder}")
    else:
        os.rmdir(folder)
