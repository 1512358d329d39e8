"""The original, pytorch-memlab 0.3.2 from PyPI, in its own folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REQUIREMENT = "pytorch-memlab==0.3.2"
FOLDER = Path(__file__).parent.parent / ".cache" / "original"


def fetch() -> Path | None:
    """The folder to import the original from, downloaded at the first time.

    Returns:
        None where it cannot be had; a line says so.
    """
    if not (FOLDER / "pytorch_memlab").is_dir():
        FOLDER.parent.mkdir(exist_ok=True)
        (FOLDER.parent / ".gitignore").write_text("*\n")
        command = ["install", "--quiet", "--no-deps", "--target", str(FOLDER), REQUIREMENT]
        if subprocess.run([sys.executable, "-m", "pip", *command], check=False).returncode:
            print(f"  {REQUIREMENT} could not be installed: no ratios to it")
            return None
    return FOLDER
