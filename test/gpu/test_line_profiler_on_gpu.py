"""The line profiler's tables on a real GPU."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.sample_reports import SAMPLE_TEXT

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(
    "command",
    [["examples/quickstart.py"], ["-m", "pytorch_memlab", "run", "examples/quickstart.py"]],
    ids=["python", "pytorch-memlab run"],
)
def test_sample_gives_the_known_tables(command):
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert done.stdout == SAMPLE_TEXT
    assert "simulated" not in done.stdout


def test_a_program_reads_its_own_peaks_while_it_is_profiled():
    from pytorch_memlab import LineProfiler

    def work():
        kept = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
        torch.empty(4 << 20, dtype=torch.uint8, device="cuda")
        peaks.append(torch.cuda.max_memory_allocated())
        return kept

    peaks: list[int] = []
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with LineProfiler(work) as profiler:
        work()

    assert peaks == [before + (5 << 20)]
    rows = profiler.display(columns=["allocated_bytes.all.peak"]).report.tables[0].rows
    assert [values[0] - before for values in rows.values()] == [
        0,
        1 << 20,
        5 << 20,
        1 << 20,
        1 << 20,
    ]
