"""Programs for ``pytorch-memlab run``, the command in another process, and its notices."""

from __future__ import annotations

import os
from pathlib import Path

from support.python_process import run_python

ROOT = Path(__file__).parents[2]

SCRIPT = """\
import sys

import torch
from torch.nn import functional as F


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(256, 1024))

    def forward(self, x):
        return F.linear(x, self.weight)


def make():
    def kibibytes(count):
        return torch.zeros(count << 10, dtype=torch.uint8)

    return kibibytes(1).cuda()


net = Net().cuda()
kept = make()
out = net(torch.ones(1024, device="cuda"))
print("done", sys.argv[1:])
"""

FORWARD = """\
peak 33.0 MiB on cuda:0, less than 0.1% of 79.19 GiB (simulated NVIDIA H100 80GB
  HBM3)
  at script.py:13 in Net.forward: return F.linear(x, self.weight)
  held by 32.0 MiB workspaces, 1.0 MiB parameters, 6.0 KiB inputs and other
    tensors
  peak 34.0 MiB reserved + 601.0 MiB context of 79.19 GiB: fits, 78.57 GiB free

## Net.forward  script.py:12
    peak     kept temporary line  code
33.0 MiB 32.0 MiB         0   13          return F.linear(x, self.weight)  <- peak

1 line added nothing: --all shows them
"""


NOTICE = (
    "pytorch-memlab: simulating NVIDIA H100 80GB HBM3 (this machine has no CUDA GPU; choose another"
    " with --gpu NAME or --gpu SIZE)\n"
)
UNUSED = (
    "pytorch-memlab: the program created no CUDA tensor, so all numbers are 0: move the model and"
    ' its inputs to the device "cuda"\n'
)


def profiled(capsys):
    """The names of the functions whose tables were printed."""
    lines = capsys.readouterr().out.splitlines()
    heads = [line.removeprefix("## ") for line in lines if line.startswith("## ")]
    return [head.partition("  ")[0] for head in heads]


def command(*arguments, **options):
    """The command in another process."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return run_python(["-m", "pytorch_memlab", "run", *arguments], env=environment, **options)


def python(*arguments, **options):
    """Plain Python, to compare with."""
    return run_python(arguments, **options)
