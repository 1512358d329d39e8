"""The line table of each backend of ``torch.compile``, in every report of a run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pytorch_memlab import LineProfiler, load, simulate
from pytorch_memlab.cli.main import main
from pytorch_memlab.simulation.machine.torch_release import RELEASE

pytestmark = [
    pytest.mark.skipif(RELEASE < (2, 13), reason="workspaces of older releases are others"),
    pytest.mark.filterwarnings("ignore:TensorFloat32"),
]

ROWS = 1024
NARROW, WIDE, WEIGHT = ROWS * 64 * 4, ROWS * 256 * 4, 64 * 256 * 4
WORKSPACE = 32 * 2**20

Table = dict[str, tuple[int, ...]]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> Any:
        h = self.up(x)
        h = functional.gelu(h)
        h += 1
        return x + self.down(h)


def table_of(net: Any, function: Any, *, passes: int = 2) -> Table:
    """Hits, kept, freed and temporary of a function's lines, by their source."""
    x = torch.ones(ROWS, 64, device="cuda")
    functional.linear(x, x, x[:, 0])  # takes the workspaces of cuBLAS
    with LineProfiler(function) as profiler:
        for _ in range(passes):
            out = net(x)
            out.sum().backward()
            del out
    columns = ("hits", "kept", "freed", "temporary")
    (table,) = profiler.display(function, columns=columns).report.tables
    source, first = table.function.source, table.function.first_line
    assert source is not None
    return {
        source[line - first].strip(): tuple(int(value or 0) for value in values)
        for line, values in table.rows.items()
    }


def rows(backend: str | None, function: Any = Net.forward, net: Any = Net) -> Table:
    with simulate("h100", compute=False):
        module = net().cuda()
        return table_of(
            module if backend is None else torch.compile(module, backend=backend), function
        )


def test_lines_of_the_eager_backend_are_those_of_the_eager_program() -> None:
    table = rows("eager")
    assert table == rows(None)
    assert table["h = functional.gelu(h)"] == (2, WIDE, 0, 0)
    assert table["return x + self.down(h)"] == (2, NARROW, 0, NARROW)


def kept_and_freed(table: Table) -> dict[str, tuple[int, ...]]:
    return {line: values[:3] for line, values in table.items()}


def test_lines_of_aot_eager_have_both_passes() -> None:
    """A line's gradients are its own; the workspace of the backward pass is for both steps."""
    assert kept_and_freed(rows("aot_eager")) == {
        "def forward(self, x: torch.Tensor) -> Any:": (2, 0, 0),
        "h = self.up(x)": (2, WIDE + WEIGHT + 1024, WIDE),
        "h = functional.gelu(h)": (2, WIDE + WIDE, WIDE + WIDE),
        "h += 1": (2, WIDE, WIDE),
        "return x + self.down(h)": (
            *(2, NARROW + WORKSPACE // 2 + WIDE + WEIGHT + 512),
            NARROW + WIDE,
        ),
    }


class Recomputed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def block(self, x: torch.Tensor) -> Any:
        h = self.up(x)
        h = h.sin()
        return self.down(h)

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(self.block, x, use_reentrant=False)


def test_lines_of_a_checkpointed_part_are_its_own() -> None:
    """With the eager backend the part runs again below ``backward()``, as in the program."""
    table = rows("eager", Recomputed.block, Recomputed)
    assert table == {
        "def block(self, x: torch.Tensor) -> Any:": (2, 0, 0, 0),
        "h = self.up(x)": (2, WIDE, 0, 0),
        "h = h.sin()": (2, WIDE, WIDE, WIDE),
        "return self.down(h)": (2, NARROW, WIDE, NARROW),
    }
    whole = rows("eager", Recomputed.forward, Recomputed)
    assert whole["return checkpoint(self.block, x, use_reentrant=False)"][:2] == (2, NARROW)


def test_lines_of_a_checkpointed_part_have_its_second_run_in_the_graph_of_backward() -> None:
    table = kept_and_freed(rows("aot_eager", Recomputed.block, Recomputed))
    assert table["h = h.sin()"] == (2, 3 * WIDE, 3 * WIDE)
    assert table["h = self.up(x)"] == (2, WIDE + WIDE + WEIGHT + 1024, WIDE)


SCRIPT = """
import sys
import torch

def step(x):
    y = x.exp()
    z = y.sum(0)
    return (x @ y) * z

def work(backend):
    x = torch.ones(512, 512, device="cuda")
    x @ x
    compiled = torch.compile(step, backend=backend)
    for _ in range(2):
        out = compiled(x)

work(sys.argv[1])
"""
SIZE = 512 * 512 * 4
LINES = {  # the sum is freed, and the product
    "def step(x):": (2, 0, 0),
    "y = x.exp()": (2, SIZE, 0),
    "z = y.sum(0)": (2, 2048, 0),
    "return (x @ y) * z": (2, SIZE, SIZE + 2048),
}
PAGE = [
    ("5", "", "", "2"),
    ("6", "1.0 MiB", "", "2"),
    ("7", "2.0 KiB", "", "2"),
    ("8", "1.0 MiB", "1.0 MiB", "2"),
]
ROW = re.compile(r"<th>(\d+)<td>[^<]*<td>([^<]*)<td>([^<]*)<td[^>]*>[^<]*<td>(\d+)<td>")


@pytest.mark.parametrize("backend", ["inductor", "aot_eager", "eager"])
def test_lines_of_a_run_are_in_its_profile_and_its_page(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text(SCRIPT)
    options = ["--dry-run", "--gpu", "h100", "-c", "hits,kept,freed"]
    outputs = ["-o", "p.json", "-o", "p.html"]
    assert main(["run", *options, *outputs, "script.py", backend]) == 0

    tables = load("p.json").display(columns=("hits", "kept", "freed")).report.tables
    (table,) = [one for one in tables if one.function.qual_name == "step"]
    source = SCRIPT.splitlines()
    lines = {source[line - 1].strip(): tuple(row) for line, row in table.rows.items()}
    assert lines == LINES
    assert set(PAGE) <= set(ROW.findall(Path("p.html").read_text()))
