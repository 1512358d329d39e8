"""Each benchmark describes itself."""

import ast
from pathlib import Path

import pytest
from support.python_process import run_python

ROOT = Path(__file__).parents[2]
BENCHMARKS = [
    path
    for path in sorted((ROOT / "benchmarks").glob("*.py"))
    if "__main__" in path.read_text() or path.stem in ("__main__", "gpu_line_event")
]


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_help_is_all_that_a_benchmark_does(path: Path) -> None:
    module = "benchmarks" if path.stem == "__main__" else f"benchmarks.{path.stem}"
    described = run_python(["-m", module, "--help"], cwd=ROOT)
    assert (described.returncode, described.stderr) == (0, "")
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    assert docstring
    summary = " ".join(docstring.split("\n\n")[0].split())
    text = " ".join(described.stdout.split())
    assert text.startswith((summary, "usage: "))
    assert "target:" not in text
