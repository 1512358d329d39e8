"""The size of attention that is written out counts its own matrices alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """\
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.transpose(-2, -1)
        weights = scores.softmax(dim=-1)
        return self.out(weights @ v)


model = Attention(512).cuda()
x = torch.randn(64, 512, 512, device="cuda")
model(x)
"""


def test_inputs_and_results_of_the_same_shape_are_not_matrices_of_scores(tmp_path: Path) -> None:
    """As wide as long: x, the values and the result have the shape of the scores."""
    (tmp_path / "train.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "pytorch_memlab", "run", "--dry-run", "--gpu", "512MiB"]
    done = subprocess.run(
        [*command, "--no-try", "train.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert (
        "  1. attention (line 14) stores 512 x 512 matrices: 128.0 MiB\n"
        "       # train.py in place of lines 13 to 15:\n"
        "       return self.out(torch.nn.functional.scaled_dot_product_attention(q.unsqueeze(1),\n"
        "           k.unsqueeze(1), v.unsqueeze(1), scale=1.0).squeeze(1))\n"
        "       frees at least 128.0 MiB\n"
        "  2. autograd saved 256.0 MiB that no backward pass reads\n"
        "       # train.py in place of line 20:\n"
        "       with torch.no_grad():\n"
        "           model(x)\n"
    ) in done.stderr
    # Variables lead to all that autograd saved: without a graph, they still do.
    assert "frees at least 256.0 MiB" not in done.stderr
