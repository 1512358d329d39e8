"""The simulation that is on. This module loads no torch: most callers find no simulation."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from torch import Tensor

    from .machine import Machine
    from .simulated_gpu import SimulatedGPU
    from .tensor_values import TensorValues

machine: Machine | None = None  # the machine that programs run on now, None outside ``simulate``

simulations: dict[int, AbstractContextManager[Machine]] = {}
"""The simulations that are on: kept here, also where the program refers to none of them."""


observers: list[Callable[[Machine, bool], object]] = []
"""Called with the simulated GPUs and True when a simulation has begun, False when it has ended."""


def gpu_of(tensor: Tensor) -> SimulatedGPU | None:
    """The simulated GPU that holds a tensor; None if none does, or no simulation is on."""
    return None if machine is None else machine.gpu_of(tensor)


def holds(tensor: Tensor) -> bool:
    """True if a tensor has memory on a simulated GPU: not of classes that wrap others."""
    return machine is not None and machine.allocations.find(tensor) is not None


def values() -> TensorValues | None:
    """The tensors without values of the dry run that is on; None without one."""
    return None if machine is None else machine.values


def tell(told: Machine, is_on: bool) -> None:
    """Call the observers."""
    for observer in observers.copy():
        observer(told, is_on)


@atexit.register
def end_simulations() -> None:
    """End those that the program has not ended, the last one first."""
    # This runs after the exit handlers of the program: it was imported before them.
    for simulation in reversed(list(simulations.values())):
        simulation.__exit__(None, None, None)
