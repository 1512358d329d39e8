"""The programs of ``programs/oom/``: each runs out of memory, and a second version does not."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "programs" / "oom"
_OPTION = re.compile(r"# (gpu|others|fixed others|settings|cause): (.*)")
_FIX = re.compile(r"( *)# fixed: (.*)")


@dataclass(frozen=True)
class OomProgram:
    """A program that runs out of memory.

    Its first lines say on which GPU, and why. The line after ``# fixed:`` is, in the second
    version, what that comment says.
    """

    name: str
    options: dict[str, str]
    text: str
    fixed: str


def programs() -> list[OomProgram]:
    """All of them."""
    return [_read(path) for path in sorted(FOLDER.glob("*.py"))]


def program(name: str) -> OomProgram:
    """One of them."""
    return _read(FOLDER / f"{name}.py")


def _read(path: Path) -> OomProgram:
    lines = path.read_text().splitlines()
    matches = [found for line in lines if (found := _OPTION.fullmatch(line))]
    first, fixed = [], []
    replacement = None
    for line in lines[len(matches) :]:
        found = _FIX.fullmatch(line)
        if found:
            replacement = found[1] + found[2]
            continue
        first.append(line)
        fixed.append(line if replacement is None else replacement)
        replacement = None
    options = {found[1]: found[2] for found in matches}
    return OomProgram(path.stem, options, "\n".join(first) + "\n", "\n".join(fixed) + "\n")
