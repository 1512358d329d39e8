"""Runs of pytest in tests of the plugin: the files they leave and what pytest printed."""

from __future__ import annotations

import re
import sys
from pathlib import Path


class OwnModules:
    """Forgets the modules of a run alone: torch's cannot be imported twice."""

    folder: Path

    def __init__(self, preserve: object = None) -> None:
        pass

    def restore(self) -> None:
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if file and self.folder in Path(file).parents:
                del sys.modules[name]


def section(text: str, title: str) -> str:
    """The lines under a heading of pytest's, up to the next heading."""
    found = re.search(
        rf"^(?:_+|=+) {re.escape(title)} (?:_+|=+)\n(.*?)(?=^(?:_|=){{8}}|\Z)", text, re.M | re.S
    )
    assert found, text
    return found[1]
