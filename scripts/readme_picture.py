"""Make readme-output.png: a screenshot of the line profiler's table in demo.ipynb.

Needs Chromium. The picture is drawn from the very HTML that the executed notebook keeps; `make
notebook` executes it on a simulated GPU, so that every machine makes the same picture.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from pathlib import Path

from chromium import browse

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "demo.ipynb"
PICTURE = ROOT / "readme-output.png"
SCALE = 2

# Shrinks the block to its content, then leaves its size in the document for --dump-dom to print.
_MEASURE = """<script>
const block = document.body.firstElementChild;
block.style.display = "inline-block";
const {width, height} = block.getBoundingClientRect();
document.body.dataset.size = [width, height].map(Math.ceil).join("x");
</script>
</body>"""


def first_table(notebook: Path) -> str:
    """The HTML of the first output of an executed notebook that has any.

    Args:
        notebook: an ``.ipynb`` file.

    Returns:
        a page of that output alone.

    Raises:
        LookupError: no output has HTML; the notebook was not executed.
    """
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    for output in (one for cell in cells for one in cell.get("outputs", ())):
        html = "".join(output.get("data", {}).get("text/html", ()))
        if html:
            return (
                '<!DOCTYPE html><html><head><meta charset="utf-8">'
                "<style>body { margin: 0; }</style></head>"
                f"<body><div>{html}</div></body></html>"
            )
    raise LookupError(f"{notebook.name} has no output with HTML: run it with `make notebook`")


def screenshot(page: str, picture: Path) -> None:
    """Save a page as an image of just its size.

    Args:
        page: an HTML document.
        picture: the PNG file to write.

    Raises:
        FileNotFoundError: no Chromium on this machine.
    """
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "page.html"
        source.write_text(page.replace("</body>", _MEASURE), encoding="utf-8")
        document = browse(source, ["--dump-dom"])
        size = re.search('data-size="([0-9]+)x([0-9]+)"', document)
        if size is None:
            raise RuntimeError(f"Chromium did not measure the page: {document[:200]!r}")
        browse(
            source,
            [
                f"--screenshot={picture}",
                f"--force-device-scale-factor={SCALE}",
                f"--window-size={size[1]},{size[2]}",
            ],
        )


def main() -> None:
    """Take the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", nargs="?", type=Path, default=PICTURE, help="the PNG to write")
    screenshot(first_table(NOTEBOOK), parser.parse_args().picture)


if __name__ == "__main__":
    main()
