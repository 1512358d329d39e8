"""State that the callbacks of training loops must leave as they found it."""

from __future__ import annotations

from contextlib import contextmanager

import torch

from pytorch_memlab.devices import find_devices, simulated_machine
from pytorch_memlab.scopes import peak_tracker
from pytorch_memlab.simulation.machine import active


def _state():
    machine = simulated_machine()
    return (
        list(active.observers),
        torch.nn.Module.__call__,
        [len(peak_tracker(device)._windows) for device in find_devices()],
        [len(gpu.allocator._told.observers) for gpu in machine.known_gpus],
        machine.op_observers,
        [gpu.log.follower for gpu in machine.known_gpus],
        machine.gradient_observers,
    )


@contextmanager
def everything_given_back():
    """Recordings, windows over peaks and observers of a simulation are after it as before it."""
    before = _state()
    yield
    assert _state() == before
