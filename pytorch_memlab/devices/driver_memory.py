"""The GPUs of this process, and what PyTorch holds on them."""

from __future__ import annotations

from typing import Any

import torch


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


def driver_memory(index: int) -> tuple[int, int]:
    """Bytes of a GPU that no process has, and all of its bytes, as the driver counts them."""
    free, total = torch.cuda.mem_get_info(index)
    return int(free), int(total)


def allocated_memory(index: int) -> int:
    # torch.cuda.memory_allocated would leave 130 objects in reference cycles.
    stats: dict[str, Any] = torch.cuda.memory_stats_as_nested_dict(index)
    return int(stats["allocated_bytes"]["all"]["current"]) if stats else 0
