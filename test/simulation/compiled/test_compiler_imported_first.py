"""Programs import parts of the compiler before they compile, while GPUs are simulated."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pytorch_memlab.simulation.machine.torch_release import RELEASE

pytestmark = pytest.mark.skipif(RELEASE < (2, 9), reason="compiled from torch 2.9 on")

PROGRAM = """
import torch
from pytorch_memlab import simulate

def step(x, y):
    return (x * torch.tensor(2.0) + torch.ones_like(y)).sum()

with simulate("h100"):
    from torch._inductor import metrics
    torch._dynamo.reset()
    x = torch.ones(512, 512, device="cuda")
    before = torch.cuda.memory_allocated()
    compiled = torch.compile(step, fullgraph=True)
    torch.cuda.reset_peak_memory_stats()
    result = compiled(x, x)
    print(torch.cuda.max_memory_allocated() - before, torch.cuda.memory_allocated() - before)
"""


def test_functions_that_the_simulation_replaces_break_no_graph() -> None:
    """The sum is fused: it has parts for the second of its two kernels, and one number."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    peak, kept = map(int, done.stdout.split())
    assert (peak < 512 * 512, kept) == (True, 512)
