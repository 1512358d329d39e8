"""The blocks of a CUDA allocator, and the memory of a GPU as the driver counts it."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Final

import torch

from . import cuda, simulated_machine


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
    return _current(index, "allocated_bytes")


def cached_memory(index: int) -> int:
    """Bytes that the allocator has taken from a GPU, and that no tensor is in."""
    return _current(index, "reserved_bytes") - _current(index, "allocated_bytes")


def caches() -> dict[str, int]:
    """``cached_memory`` by the names of the CUDA devices that are in use; it initialises none."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return {}
    return {f"cuda:{index}": cached_memory(index) for index in range(count_gpus())}


def _current(index: int, kind: str) -> int:
    # torch.cuda.memory_allocated would leave 130 objects in reference cycles.
    stats: dict[str, Any] = torch.cuda.memory_stats_as_nested_dict(index)
    return int(stats[kind]["all"]["current"]) if stats else 0


@dataclass(frozen=True, slots=True)
class AllocatedBlock:
    """One block that is allocated."""

    address: int  # of its first byte
    size: int  # bytes that it has
    requested: int  # bytes that were asked for
    # file names and lines of the stack that asked, the innermost first; empty unless the program
    # records PyTorch's memory history
    frames: tuple[tuple[str, int], ...] = ()


def allocations_of(device: torch.device) -> list[AllocatedBlock] | None:
    """The blocks in use of a device, without making a context; None where they are not shown."""
    if device.type != "cuda" or not _in_use(device.index):
        return None
    if torch.cuda.get_allocator_backend() != "native":
        return None
    machine = simulated_machine()
    with nullcontext() if machine is None else machine.thread.without_descriptions():
        segments = torch.cuda.memory_snapshot()
    return [
        AllocatedBlock(
            block["address"],
            block["size"],
            block.get("requested_size", block["size"]),
            tuple((frame["filename"], frame["line"]) for frame in block.get("frames") or ()),
        )
        for segment in segments
        if segment["device"] == device.index
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    ]


def is_private(segment: Mapping[str, Any]) -> bool:
    """True if a segment of a snapshot is of a private pool: of CUDA graphs, or of a MemPool."""
    return any(segment.get("segment_pool_id") or ())


def unused_private_memory(device: torch.device) -> int:
    """Bytes that private pools of a GPU keep, and that serve no request of other code."""
    stats: dict[str, Any] = torch.cuda.memory_stats_as_nested_dict(device.index)
    if not stats.get("reserved_bytes_by_private_pools", True):  # older releases do not tell
        return 0
    return sum(
        segment["total_size"] - segment["active_size"]
        for segment in torch.cuda.memory_snapshot()
        if segment["device"] == device.index and is_private(segment)
    )


def workspaces_among(
    blocks: list[AllocatedBlock], device: torch.device
) -> tuple[list[AllocatedBlock], bool]:
    """The cuBLAS workspaces of a CUDA device that is in use, and whether they are known."""
    # PyTorch tells only their size: of a real GPU these are the blocks of that size.
    machine = simulated_machine()
    if machine is None:
        from ..simulation.inspect import workspace_size

        size = workspace_size(torch.cuda.get_device_capability(device)[0])
        return [block for block in blocks if block.requested == size], False
    gpu = machine.gpu(device.index)
    addresses = {place.address for place in machine.workspaces.living() if place.gpu is gpu}
    return [block for block in blocks if block.address in addresses], True


def driver_view(device: torch.device) -> tuple[int | None, int | None]:
    """Bytes that are not free, and those of them that this process holds; None if not known."""
    if device.type != "cuda" or not _in_use(device.index):
        return None, None
    free, total = torch.cuda.mem_get_info(device.index)
    return total - free, _held_by_this_process(device.index)


def _in_use(index: int) -> bool:
    machine = simulated_machine()
    return cuda.is_used(index) if machine is None else machine.gpu(index).in_use()


def _held_by_this_process(index: int) -> int | None:
    machine = simulated_machine()
    if machine is not None:
        return machine.gpu(index).driver.process_memory
    with suppress(Exception):  # no NVML, or another process namespace: the driver does not tell
        nvml = importlib.import_module("pynvml")  # of nvidia-ml-py, which is optional
        nvml.nvmlInit()
        try:
            return _process_memory(nvml, str(torch.cuda.get_device_properties(index).uuid))
        finally:
            nvml.nvmlShutdown()
    return None


_PROCESSES: Final = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",  # clients of an MPS server
)


def _process_memory(nvml: Any, uuid: str) -> int | None:
    """Bytes of this process on a GPU or a MIG instance; None if NVML does not tell, as on WSL."""
    for kind in ("GPU", "MIG"):
        with suppress(nvml.NVMLError):
            handle = nvml.nvmlDeviceGetHandleByUUID(f"{kind}-{uuid}")
            for name in _PROCESSES:
                for process in getattr(nvml, name, lambda _handle: ())(handle):
                    if process.pid == os.getpid() and process.usedGpuMemory is not None:
                        return int(process.usedGpuMemory)
    return None
