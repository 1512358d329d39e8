"""Run demo.ipynb from start to end in a fresh kernel, and keep its outputs."""

from __future__ import annotations

import argparse
import sysconfig
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "demo.ipynb"


def executed(notebook: Path) -> nbformat.NotebookNode:
    """Run a notebook.

    Args:
        notebook: an ``.ipynb`` file; it is not changed.

    Returns:
        the notebook with its outputs, without anything that differs from run to run by itself.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed that is not tagged for it.
    """
    node: nbformat.NotebookNode = nbformat.read(notebook, as_version=4)
    NotebookClient(node, timeout=300, kernel_name="python3", resources={}).execute()
    for cell in node.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = with_whole_streams(cell.outputs)
        for output in cell.get("outputs", ()):
            if output.output_type == "error":
                output.traceback = [_without_folders(line) for line in output.traceback]
    return node


def with_whole_streams(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Outputs of a cell in which text that was printed in a row is one output.

    The kernel sends what was printed every 0.2 seconds, so a slow machine has more outputs.
    """
    found: list[nbformat.NotebookNode] = []
    for output in outputs:
        is_stream = output.output_type == "stream"
        if is_stream and found and found[-1].get("name") == output.name:
            found[-1].text += output.text
        else:
            found.append(output)
    return found


def _without_folders(line: str) -> str:
    """A line of a traceback without the folders of this machine."""
    for folder in (sysconfig.get_path("purelib"), str(ROOT)):
        line = line.replace(folder + "/", "")
    return line


def main() -> None:
    """Run it, and save it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebook", nargs="?", type=Path, default=NOTEBOOK)
    path = parser.parse_args().notebook
    nbformat.write(executed(path), path)


if __name__ == "__main__":
    main()
