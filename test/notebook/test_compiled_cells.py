"""Lines of compiled functions in the tables of cells."""

from __future__ import annotations

from typing import Any

import pytest

from pytorch_memlab.simulation.machine.torch_release import RELEASE

pytestmark = pytest.mark.skipif(RELEASE < (2, 9), reason="compiled from torch 2.9 on")

CELL = """
import torch
def step(x):
    y = x.exp()
    z = y.sum(0)
    return (x @ y) * z
x = torch.ones(512, 512, device="cuda")
warm = x @ x
compiled = torch.compile(step, backend="{}")
"""
SIZE = 512 * 512 * 4


@pytest.mark.knows_simulation("lines of compiled code are those of the simulation")
@pytest.mark.parametrize("backend", ["inductor", "aot_eager", "eager"])
@pytest.mark.parametrize("magic", ["%mlrun", "%%mlrun"])
def test_lines_of_a_cells_function(
    run: Any, magic: str, backend: str, tmp_path: Any, monkeypatch: Any
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    run("%load_ext pytorch_memlab")
    try:
        run("%simulate h100")
        run(CELL.format(backend)).raise_error()
        separator = " " if magic == "%mlrun" else "\n"
        result = run(f"{magic} -D -f step -c hits,kept,freed{separator}out = compiled(x)")
        (table,) = result.result.report.tables
        source, first = table.function.source, table.function.first_line
        assert {source[line - first].strip(): tuple(row) for line, row in table.rows.items()} == {
            "def step(x):": (1, 0, 0),
            "y = x.exp()": (1, SIZE, 0),
            "z = y.sum(0)": (1, 2048, 0),
            "return (x @ y) * z": (1, SIZE, SIZE + 2048),
        }
    finally:
        run("%simulate off")
        run("%unload_ext pytorch_memlab")
