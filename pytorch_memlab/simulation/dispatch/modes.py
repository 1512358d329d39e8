"""Both modes of a simulation, entered together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..machine.machine import Machine
from .device_mode import SimulatedDeviceMode
from .function_mode import SimulatedFunctionMode


@contextmanager
def simulated_modes(machine: Machine) -> Iterator[None]:
    """Within, in this thread: functions and ops run on the simulated GPUs."""
    with SimulatedDeviceMode(machine), SimulatedFunctionMode(machine):
        yield
