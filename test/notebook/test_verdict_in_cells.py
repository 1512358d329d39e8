"""%mlrun says whether the memory of a simulated GPU was enough."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pytorch_memlab.notebook.magics import end_everything

CELL = """\
%%mlrun {options}
def keep():
    return torch.empty(20 << 20, dtype=torch.uint8, device="cuda")
lost = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
del lost
kept = keep()
{end}
"""

FITS = "peak 100.0 MiB reserved of 1.00 GiB: fits, 924.0 MiB free\n"


@pytest.fixture
def shown(shell: Any, run: Any, capsys: pytest.CaptureFixture[str]) -> Any:
    """The text that a cell shows."""
    run("%load_ext pytorch_memlab")
    shell.user_ns["torch"] = torch

    def text_of(options: str, end: str = "") -> str:
        capsys.readouterr()
        run(CELL.format(options=options, end=end))
        return capsys.readouterr().out

    yield text_of
    end_everything()


def test_a_gpu_simulated_for_the_cell(shown: Any) -> None:
    assert FITS in shown("--simulate 1GiB")


def test_a_gpu_simulated_for_many_cells(shown: Any, run: Any, tmp_path: Path) -> None:
    run("%simulate 1GiB")
    page, text, data = (tmp_path / f"cell.{end}" for end in ("html", "txt", "json"))

    assert FITS in shown(f"-T {text}")
    assert FITS in text.read_text()
    run("del kept")
    shown(f"-T {page}")
    assert page.read_text().count("reserved of 1.00 GiB: fits, 924.0 MiB free") == 1
    run("del kept")
    shown(f"-T {data}")
    assert '"peak_reserved":104857600' in data.read_text()


def test_a_cell_that_runs_out_of_memory(shown: Any) -> None:
    text = shown("--simulate 1GiB", "torch.empty(1 << 30, dtype=torch.uint8, device='cuda')")

    assert "peak 100.0 MiB reserved of 1.00 GiB: does not fit\n" in text


def test_without_a_simulation_nothing_is_said(shown: Any) -> None:
    text = shown("", "pass").replace("'cuda'", "")

    assert "reserved of" not in text
