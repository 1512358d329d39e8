"""The memory of the host and of the GPU in bytes, under the names of the later ipyexperiments."""

from __future__ import annotations

from typing import NamedTuple

from ..devices.allocations import current_gpu, driver_memory, empty_caches
from ..render.experiment_report import state_text
from .running_experiment import memory_now


class RAM(NamedTuple):
    """Memory in bytes.

    Args:
        total: that the machine or the GPU has.
        free: that is available.
        used: by this process; of a GPU by all processes.
    """

    total: int
    free: int
    used: int


class CurrentRAM:
    """The memory now, which an experiment answers at any time; zeros of a GPU with ``cpu``."""

    backend: str

    def cpu_ram(self) -> RAM:
        """Of the host; used is what is resident of this process."""
        import psutil

        memory = psutil.virtual_memory()
        return RAM(memory.total, memory.available, psutil.Process().memory_info().rss)

    def cpu_ram_total(self) -> int:
        """Bytes of the host."""
        return self.cpu_ram().total

    def cpu_ram_avail(self) -> int:
        """Bytes that the host has left."""
        return self.cpu_ram().free

    def cpu_ram_used(self) -> int:
        """Resident bytes of this process."""
        return self.cpu_ram().used

    def gpu_ram(self) -> RAM:
        """Of the current GPU, after the allocator's cache was emptied."""
        index = current_gpu() if self.backend == "pytorch" else None
        if index is None:
            return RAM(0, 0, 0)
        self.gpu_clear_cache()
        free, total = driver_memory(index)
        return RAM(total, free, total - free)

    def gpu_ram_total(self) -> int:
        """Bytes of the current GPU."""
        return self.gpu_ram().total

    def gpu_ram_avail(self) -> int:
        """Bytes that the current GPU has left."""
        return self.gpu_ram().free

    def gpu_ram_used(self) -> int:
        """Bytes of the current GPU that are used, by all processes."""
        return self.gpu_ram().used

    def gpu_clear_cache(self) -> None:
        """Empty the allocator's cache."""
        if self.backend == "pytorch":
            empty_caches()

    def print_state(self) -> None:
        """Print the section on the current state."""
        print(state_text(memory_now(with_gpus=self.backend == "pytorch")).rstrip("\n"))
