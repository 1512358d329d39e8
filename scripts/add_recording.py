"""Add a file of ``pytorch-memlab verify -o`` to the recordings that the tests replay."""

from __future__ import annotations

import argparse
import gzip
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from pytorch_memlab.simulation import replay

FOLDER = Path(__file__).parents[1] / "test" / "data" / "recordings"
_NAME = re.compile(r"[a-z][\w.]*")


def main() -> str | None:
    """Check the file, and add it with its row; return what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, metavar="FILE", help="NAME.json.gz")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the recordings")
    options = parser.parse_args()
    name = options.file.name.removesuffix(".json.gz")
    if not options.file.name.endswith(".json.gz") or not _NAME.fullmatch(name):
        return f"{options.file}: name it as its recording is to be called, such as my_model.json.gz"
    path, readme = options.folder / f"{name}.json.gz", options.folder / "README.md"
    if path.exists():
        return f"there is a recording {name}: name this one otherwise"
    try:
        trace = json.loads(gzip.decompress(options.file.read_bytes()))
        row = row_of(name, trace)
    except (OSError, ValueError, KeyError) as error:
        return f"{options.file} is no recording: {error}"
    text = readme.read_text(encoding="utf-8")
    shutil.copyfile(options.file, path)
    readme.write_text(with_row(text, row), encoding="utf-8")
    print(f"{path.name} and its row in {readme} are new: say there which program it is, and test")
    return None


def row_of(name: str, trace: dict[str, Any]) -> str:
    """The row of the table of recordings."""
    versions = trace["versions"]
    peak = replay(trace).stats["active_bytes"]["all"]["peak"] / 2**20
    program = f"a program on {versions['gpu']}, torch {versions['torch']}"
    return f"| `{name}` | {program} | {len(trace['events']):,} | {peak:.2f} MiB |"


def with_row(text: str, row: str) -> str:
    """The text with a row more in the table of programs, which is in order of names."""
    lines = text.splitlines()
    rows = [at for at, line in enumerate(lines) if line.startswith("| `") and "MiB |" in line]
    at = next((at for at in rows if lines[at] > row), rows[-1] + 1)
    return "\n".join([*lines[:at], row, *lines[at:]]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
