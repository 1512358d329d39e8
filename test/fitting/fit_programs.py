"""Small programs for tests of ``fit``, and what runs them."""

from __future__ import annotations

from textwrap import dedent

from support.trials import run_trial

from pytorch_memlab.fitting.target import ProgramTarget
from pytorch_memlab.simulation.hardware.presets import find_gpu

MIB = 2**20

LOOP = """
    import torch

    weight = torch.zeros(2**20, device="cuda", requires_grad=True)
    optimizer = torch.optim.Adam([weight])
    for _ in range(100):
        weight.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
"""A training loop of 4 MiB of parameters, gradients and two states each: 16 MiB."""


def trial_of(text, folder, **options):
    """Run a program on a GPU without limit."""
    path = folder / "program.py"
    path.write_text(dedent(text))
    return run_trial(ProgramTarget(str(path)), find_gpu("a100"), **options)


def kept(trial):
    """MiB of the allocations that the program holds at the end."""
    (device,) = trial.history.devices
    sizes = {}
    for event in device.events:
        if event.action == "alloc":
            sizes[event.address] = event.size
        elif event.action == "free_completed":
            sizes.pop(event.address, None)
    return sum(sizes.values()) / MIB
