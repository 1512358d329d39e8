"""Chromium, as tests of pages use it."""

from __future__ import annotations

import json
import shutil
import subprocess
from html import unescape

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
NODE = shutil.which("node")


def title_of(page, folder, *options):
    """The JSON that the scripts of a page leave in its title."""
    (folder / "page.html").write_text(page, encoding="utf-8")
    dumped = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            "--window-size=1200,900",
            f"--user-data-dir={folder / 'profile'}",
            *options,
            "--dump-dom",
            (folder / "page.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    return json.loads(unescape(dumped.partition("<title>")[2].partition("</title>")[0]))
