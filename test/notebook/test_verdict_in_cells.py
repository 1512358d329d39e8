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


@pytest.mark.knows_simulation("the verdict is that of a simulated GPU")
def test_a_gpu_simulated_for_the_cell(shown: Any) -> None:
    assert FITS in shown("--simulate 1GiB")


@pytest.mark.knows_simulation("the verdict is that of a simulated GPU")
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


@pytest.mark.knows_simulation("the verdict is that of a simulated GPU")
def test_a_cell_that_runs_out_of_memory(shown: Any) -> None:
    text = shown("--simulate 1GiB", "torch.empty(1 << 30, dtype=torch.uint8, device='cuda')")

    assert "peak 100.0 MiB reserved of 1.00 GiB: does not fit\n" in text


def test_without_a_simulation_nothing_is_said(shown: Any) -> None:
    text = shown("", "pass").replace("'cuda'", "")

    assert "reserved of" not in text


WORK = """\
%%mlrun {options} -f work
def work():
    return torch.empty(4 << 20, dtype=torch.uint8, device="cuda").add(1).numel()
work()
"""


@pytest.mark.knows_simulation("the verdict is that of a simulated GPU")
def test_the_cache_of_earlier_cells_does_not_count(
    shown: Any, run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run("%simulate 2GiB")
    run("old = torch.empty(1900 << 20, dtype=torch.uint8, device='cuda'); del old")
    capsys.readouterr()
    run(WORK.format(options=""))
    text = capsys.readouterr().out
    assert "peak 8.0 MiB reserved of 2.00 GiB: fits, 1.99 GiB free\n" in text
    assert "\n1.85 GiB more reserved is cache of earlier cells: exact with --empty-cache\n" in text
    assert torch.cuda.memory_reserved() >= 1900 << 20  # nothing was emptied
    run(WORK.format(options="--empty-cache"))
    text = capsys.readouterr().out
    assert "peak 20.0 MiB reserved of 2.00 GiB: fits, 1.98 GiB free\n" in text
    assert "cache of earlier cells" not in text


@pytest.mark.knows_simulation("the verdict is that of a simulated GPU")
def test_a_cell_that_needs_the_cache_of_earlier_cells_counts_what_it_needs(
    shown: Any, run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run("%simulate 2GiB")
    run("old = torch.empty(800 << 20, dtype=torch.uint8, device='cuda'); del old")
    run(
        "%%mlrun\ndef work():\n    torch.empty(800 << 20, dtype=torch.uint8, device='cuda')\nwork()"
    )
    text = capsys.readouterr().out
    assert "peak 800.0 MiB reserved of 2.00 GiB: fits, 1.22 GiB free\n" in text
    assert "cache of earlier cells" not in text
