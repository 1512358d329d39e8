"""The GPUs that tests run on: those of this machine, or simulated ones."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from .._common.process.uncaught_errors import forget_shown_error
from ..devices.allocations import drop_workspaces
from ..simulation import simulate
from ..simulation.inspect import DEFAULT_GPU, GPU, active, find_gpu


class MachinesOfTests:
    """Simulated GPUs for tests, one after another."""

    # Each test has fresh GPUs, unless tensors of an earlier test are alive: those of fixtures of a
    # module or a session. Then it has the GPUs that these tensors are on.

    def __init__(self) -> None:
        self._kept: dict[GPU, simulate] = {}

    @contextmanager
    def simulated(self, gpu: str | None) -> Iterator[None]:
        """Simulate for one test, where there is no GPU."""
        is_nested = gpu is not None and active.machine is not None
        if torch.cuda.is_available() and not is_nested:
            _forget_earlier_tests()
            yield
            return
        key = find_gpu(gpu or DEFAULT_GPU)
        simulation = self._kept.pop(key, None)
        if simulation is None:
            simulation = simulate(key)
            machine = simulation.__enter__()
        else:
            machine = simulation.resume()
            _forget_earlier_tests()
            if not any(True for _ in machine.living()):
                simulation.__exit__()
                machine = simulation.__enter__()
        try:
            yield
        finally:
            simulation.__exit__()
            if any(True for _ in machine.living()):
                self._kept[key] = simulation


def _forget_earlier_tests() -> None:
    """Free what only garbage, the last error and cuBLAS hold."""
    forget_shown_error()  # pytest does so too, a moment later
    gc.collect()
    drop_workspaces()
