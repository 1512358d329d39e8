"""Make docs/_static/report-light.png and report-dark.png: the page of a training run.

Needs Chromium. The run is a dry run on a simulated GPU, so that every machine makes the same page.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from chromium import browse

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "docs" / "_static"
PROGRAM: Final = (ROOT / "examples" / "resnet.py", "--batch", "256", "--size", "224")

_SIZE: Final = (1000, 1230)
_THEMES: Final = {"light": 1, "dark": 0}
"""Names of themes, and numbers by which Chromium knows them."""


def write_page(page: Path) -> None:
    """Profile the program.

    Args:
        page: the HTML file to write.
    """
    command = [sys.executable, "-m", "pytorch_memlab", "run", "--dry-run", "--gpu", "t4"]
    subprocess.run([*command, "-o", page, *PROGRAM], check=True, cwd=ROOT)


def screenshot(page: Path, picture: Path, theme: str) -> None:
    """Save the top of a page as an image.

    Args:
        page: an HTML file.
        picture: the PNG file to write.
        theme: ``light`` or ``dark``.

    Raises:
        FileNotFoundError: no Chromium on this machine.
    """
    browse(
        page,
        [
            f"--blink-settings=preferredColorScheme={_THEMES[theme]}",
            f"--window-size={_SIZE[0]},{_SIZE[1]}",
            f"--screenshot={picture}",
        ],
    )


def main() -> None:
    """Take the pictures."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        write_page(page)
        for theme in _THEMES:
            screenshot(page, FOLDER / f"report-{theme}.png", theme)


if __name__ == "__main__":
    main()
