"""The memory that an experiment follows: one class per backend.

To add one, write a class that overrides the methods of ``Backend``, and put it into ``BACKENDS``.
"""

from __future__ import annotations

from dataclasses import dataclass

from .._common.quoted import quoted
from ..devices.driver_memory import (
    allocated_memory,
    count_gpus,
    current_gpu,
    driver_memory,
    empty_caches,
)
from ..errors import UsageError
from ..gpu_mem import preload_pytorch


@dataclass(frozen=True, slots=True)
class GPUState:
    """The memory of one GPU, in bytes."""

    index: int
    allocated: int  # by the program
    free: int  # of the whole GPU, all processes included
    total: int


class Backend:
    """A framework whose memory an experiment follows: this one is the process alone."""

    name = "cpu"

    def load(self) -> None:
        """Load what the first use would load, so that it counts in no experiment."""

    def empty_cache(self) -> None:
        """Free the memory that the framework caches."""

    def current(self) -> int | None:
        """Index of the GPU that is in use now, None if the backend has none."""
        return None

    def gpus(self) -> list[GPUState]:
        """Every GPU that the program can use, simulated ones in a simulation."""
        return []


class PytorchBackend(Backend):
    """PyTorch, on every CUDA device that it sees."""

    name = "pytorch"

    def load(self) -> None:
        """Make the CUDA context."""
        if not count_gpus():
            raise UsageError(
                "backend 'pytorch' needs a CUDA GPU and there is none here: use "
                "IPyExperiments('cpu'), or simulate a GPU with %simulate h100"
            )
        preload_pytorch()

    def empty_cache(self) -> None:
        """Empty the cache of the allocator on every device."""
        empty_caches()

    def current(self) -> int | None:
        """The device that is current in this thread."""
        return current_gpu()

    def gpus(self) -> list[GPUState]:
        """Every device with what is allocated on it."""
        return [
            GPUState(index, allocated_memory(index), *driver_memory(index))
            for index in range(count_gpus())
        ]


BACKENDS = {backend.name: backend for backend in (Backend, PytorchBackend)}


def find_backend(name: str) -> Backend:
    """The backend of a name. Raises ``UsageError`` if there is none."""
    if name not in BACKENDS:
        raise UsageError(f"no backend {quoted(name)}: there is {', '.join(sorted(BACKENDS))}")
    return BACKENDS[name]()
