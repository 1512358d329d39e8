"""The CUDA context of this process: releasing it and creating it again."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import torch

from .._common.prose_size import prose_size
from ..devices import simulated_machine
from ..errors import ContextReleaseError
from .cuda_checkpoint import LOCKED, RUNNING, SUSPENDED, Driver, find_driver

if TYPE_CHECKING:
    from ..simulation.inspect import Machine

_LOST = "CUDA is lost in this process, but all tensors are safe in host memory: save them"


class CheckpointedContext:
    """A context that the NVIDIA driver moves into host memory, and back; addresses are kept."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def suspend(self) -> None:
        """Lock the calls of CUDA of this process, and checkpoint it."""
        try:
            self._driver.act("lock")
            self._driver.act("checkpoint")
        except ContextReleaseError as error:
            with suppress(ContextReleaseError):
                if self._driver.state() == LOCKED:
                    self._driver.act("unlock")
            state = "everything is on the GPU as before" if self.is_usable() else _LOST
            raise ContextReleaseError(f"{error}; {state}") from error

    def resume(self) -> None:
        """Restore the process, and unlock its calls of CUDA."""
        try:
            if self._driver.state() == SUSPENDED:
                self._driver.act("restore")
            if self._driver.state() == LOCKED:
                self._driver.act("unlock")
        except ContextReleaseError as error:
            raise ContextReleaseError(
                f"{error}; all tensors are still in host memory, safe: call restore() again"
            ) from error

    def is_usable(self) -> bool:
        """True if the driver lets CUDA be called."""
        try:
            return self._driver.state() == RUNNING
        except ContextReleaseError:
            return False


class SimulatedContext:
    """The contexts of simulated GPUs, of the size of ``simulate(context=...)``."""

    def __init__(self, machine: Machine) -> None:
        self._drivers = [gpu.driver for gpu in machine.known_gpus]
        self._taken = [driver.context for driver in self._drivers]

    def suspend(self) -> None:
        """From now on the contexts take nothing."""
        for driver in self._drivers:
            driver.context = 0

    def resume(self) -> None:
        """Take for each context what it took before."""
        for index, (driver, taken) in enumerate(zip(self._drivers, self._taken, strict=True)):
            if driver.free_memory() < taken:
                raise ContextReleaseError(
                    f"no room for the CUDA context of {prose_size(taken)} on cuda:{index}; all "
                    "tensors are still in host memory, safe: call restore() again"
                )
        for driver, taken in zip(self._drivers, self._taken, strict=True):
            driver.context = taken

    def is_usable(self) -> bool:
        """Always."""
        return True


Context = CheckpointedContext | SimulatedContext
"""The memory of this process on the GPUs outside the allocator of PyTorch."""


def find_context() -> Context | None:
    """The context of this process, real or simulated; None if CUDA was not used yet."""
    machine = simulated_machine()
    if machine is not None:
        return SimulatedContext(machine)
    if not torch.cuda.is_initialized():
        return None
    return CheckpointedContext(find_driver())
