"""Memory of a GPU: of the whole card, as the driver has it, and what is allocated of it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch


class DriverMemory(NamedTuple):
    """Memory of a whole GPU, in bytes."""

    free: int  # bytes that no process has
    total: int  # bytes of the card


def count_gpus() -> int:
    """Number of CUDA devices of this process, simulated ones in a simulation; 0 without any."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def current_gpu() -> int | None:
    """Index of this thread's current CUDA device, None without any."""
    return torch.cuda.current_device() if count_gpus() else None


def empty_caches() -> None:
    """Let the caching allocators give back what they keep for later; nothing without a GPU."""
    if count_gpus():
        torch.cuda.empty_cache()


def drop_workspaces() -> None:
    """Free the workspaces of cuBLAS; the next call makes them again."""
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is not None:
        clear()


def driver_memory(index: int) -> DriverMemory:
    """Memory of a GPU, as ``torch.cuda.mem_get_info`` reads it from the driver."""
    return DriverMemory(*torch.cuda.mem_get_info(index))


def allocated_memory(index: int) -> int:
    # torch.cuda.memory_allocated would leave 130 objects in reference cycles.
    stats: dict[str, Any] = torch.cuda.memory_stats_as_nested_dict(index)
    return int(stats["allocated_bytes"]["all"]["current"]) if stats else 0
