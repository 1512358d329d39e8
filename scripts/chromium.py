"""Headless Chromium, for pictures of pages."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome")
_OPTIONS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


def browse(page: Path, options: Sequence[str]) -> str:
    """Open a page with an empty profile.

    Args:
        page: an HTML file.
        options: of Chromium, such as ``--screenshot=page.png``.

    Returns:
        the standard output of Chromium.

    Raises:
        FileNotFoundError: this machine has no Chromium.
        subprocess.CalledProcessError: Chromium failed.
    """
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is None:
        raise FileNotFoundError(f"none of {', '.join(_BROWSERS)} was found")
    with tempfile.TemporaryDirectory() as profile:
        command = [browser, *_OPTIONS, f"--user-data-dir={profile}", *options, page.as_uri()]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    return done.stdout
