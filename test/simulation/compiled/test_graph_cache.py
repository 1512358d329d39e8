"""Lowered graphs are kept for the next run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from pytorch_memlab import LineProfiler, simulate
from pytorch_memlab._common.torch_release import RELEASE
from pytorch_memlab.cli.main import main

pytestmark = pytest.mark.skipif(RELEASE < (2, 9), reason="compiled from torch 2.9 on")

SOURCE = """
def step(x):
    y = x.sin().sum(0)
    return (x * y) @ x
"""


def step_at(line: int, tmp_path: Path) -> Any:
    """The function of ``SOURCE``, so many lines lower in its file."""
    path = tmp_path / "model.py"
    text = "\n" * line + SOURCE
    path.write_text(text)
    names: dict[str, Any] = {}
    exec(compile(text, str(path), "exec"), names)
    return names["step"]


def lines_of(step: Any, gpu: str = "h100") -> tuple[dict[int, tuple[Any, ...]], int]:
    """The table of a step's two calls, by line, and the graphs that Inductor lowered for it."""
    from torch._inductor.graph import GraphLowering

    lowered: list[None] = []
    run = GraphLowering.run

    def counted(self: Any, *args: Any) -> Any:
        lowered.append(None)
        return run(self, *args)

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(GraphLowering, "run", counted)
        with simulate(gpu, compute=True), LineProfiler(step) as profiler:
            compiled = torch.compile(step, dynamic=False)
            for size in (16, 32):
                x = torch.linspace(0, 1, size * size).view(size, size)
                torch.testing.assert_close(compiled(x.cuda()).cpu(), step(x))
            (table,) = profiler.display(step, columns=("kept", "freed", "temporary")).report.tables
    first = table.function.first_line
    return {line - first: values for line, values in table.rows.items()}, len(lowered)


def test_a_second_run_lowers_nothing_and_has_the_lines_of_its_own_file(tmp_path: Path) -> None:
    fresh, lowered = lines_of(step_at(0, tmp_path))
    assert lowered == 2
    assert [values for values in fresh.values() if any(values)]
    assert lines_of(step_at(7, tmp_path)) == (fresh, 0)


def test_another_gpu_has_other_graphs(tmp_path: Path) -> None:
    lines_of(step_at(0, tmp_path))
    assert lines_of(step_at(0, tmp_path), "a100")[1] == 2


SCRIPT = """
import torch
step = torch.compile(lambda x: x.sin().sum(0))
print(step(torch.ones(64, 64, device="cuda")).shape)
"""


def test_a_dry_run_keeps_graphs_and_leaves_those_of_real_gpus_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    of_gpus = tmp_path / "inductor"
    of_gpus.mkdir()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(of_gpus))
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    assert main(["run", "--dry-run", str(script)]) == 0
    assert "torch.Size([64])" in capfd.readouterr().out
    assert not [file for _, _, files in os.walk(of_gpus) for file in files]
    kept = tmp_path / "cache" / "pytorch_memlab" / "compiled"
    assert len([file for _, _, files in os.walk(kept) for file in files]) == 1
