"""CUDA's context of this process: giving it back to the GPU, and taking it again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from .._common.prose_size import prose_size
from ..devices import simulated_machine
from ..errors import ContextReleaseError
from .cuda_checkpoint import LOCKED, RUNNING, SUSPENDED, Driver, find_driver

if TYPE_CHECKING:
    from ..simulation.inspect import Machine

_LOST = "CUDA is lost in this process, but all tensors are safe in host memory: save them"


class Context(Protocol):
    """What holds memory on the GPUs besides PyTorch's allocator."""

    def suspend(self) -> None:
        """Give the memory back. Raises ContextReleaseError if that fails."""

    def resume(self) -> None:
        """Take the memory again. Raises ContextReleaseError if that fails."""

    def is_usable(self) -> bool:
        """Whether CUDA can be called."""


def find_context() -> Context | None:
    """The context of this process, real or simulated.

    Returns:
        None if CUDA was not used yet: then there is none.

    Raises:
        ContextReleaseError: it cannot be given back here.
    """
    machine = simulated_machine()
    if machine is not None:
        return SimulatedContext(machine)
    if not torch.cuda.is_initialized():
        return None
    return CheckpointedContext(find_driver())


class CheckpointedContext:
    """A context that the NVIDIA driver moves into host memory, and back.

    The driver copies what is still on the GPUs, closes them, and lets every call of CUDA wait
    until the process is resumed. Addresses on the GPU are kept.

    Args:
        driver: who checkpoints this process.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def suspend(self) -> None:
        """Lock the process' calls of CUDA, and checkpoint it."""
        try:
            self._driver.act("lock")
            self._driver.act("checkpoint")
        except ContextReleaseError as error:
            raise ContextReleaseError(f"{error}; {self._after_failure()}") from error

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
        """Whether the driver lets CUDA be called."""
        try:
            return self._driver.state() == RUNNING
        except ContextReleaseError:
            return False

    def _after_failure(self) -> str:
        """What became of the process, after it was unlocked where that is possible."""
        try:
            if self._driver.state() == LOCKED:
                self._driver.act("unlock")
        except ContextReleaseError:
            return _LOST
        return "everything is on the GPU as before" if self.is_usable() else _LOST


class SimulatedContext:
    """The contexts of simulated GPUs: what ``simulate(context=...)`` takes of each.

    Args:
        machine: whose GPUs.
    """

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
                    f"no room for {prose_size(taken)} of CUDA's context on cuda:{index}; all "
                    "tensors are still in host memory, safe: call restore() again"
                )
        for driver, taken in zip(self._drivers, self._taken, strict=True):
            driver.context = taken

    def is_usable(self) -> bool:
        """Always."""
        return True
