"""The blocks of a CUDA allocator, and the memory of a GPU as the driver counts it."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from . import cuda, simulated_machine
from .driver_memory import driver_memory


@dataclass(frozen=True, slots=True)
class Allocation:
    """One block that is allocated."""

    address: int  # of its first byte
    size: int  # bytes that it has
    requested: int  # bytes that were asked for
    # file names and lines of the stack that asked, the innermost first; empty unless the program
    # records PyTorch's memory history
    frames: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Workspaces:
    """Workspaces of kernels that stay allocated between calls."""

    addresses: frozenset[int] | None  # of their blocks, None if they cannot be told
    size: int  # bytes of one cuBLAS workspace as PyTorch asks for it


@dataclass(frozen=True, slots=True)
class DriverView:
    """The memory of a device as the driver counts it, in bytes."""

    used: int  # not free, in whichever process
    process: int | None  # held by this process, None if the driver does not tell


def allocations_of(device: torch.device) -> list[Allocation] | None:
    """The blocks in use of a device, without making a context; None where they are not shown."""
    if device.type != "cuda" or not _in_use(device.index):
        return None
    if torch.cuda.get_allocator_backend() != "native":
        return None
    return [
        _allocation(block)
        for segment in torch.cuda.memory_snapshot()
        if segment["device"] == device.index
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    ]


def address_finder() -> Callable[[int, int], int]:
    """A function from the host address of a storage, and its ``_cdata``, to that on its device.

    On a real GPU the two addresses are one.
    """
    machine = simulated_machine()
    if machine is None:
        return lambda address, _number: address
    placements = machine.allocations

    def find(address: int, number: int) -> int:
        placement = placements.known.get(number)
        return address if placement is None else placement.address

    return find


def workspaces_of(device: torch.device) -> Workspaces:
    """The cuBLAS workspaces of a CUDA device that is in use; PyTorch tells only their size."""
    from ..simulation.inspect import workspace_size

    machine = simulated_machine()
    if machine is None:
        return Workspaces(None, workspace_size(torch.cuda.get_device_capability(device)[0]))
    gpu = machine.gpu(device.index)
    placements = machine.workspaces.living()
    addresses = frozenset(place.address for place in placements if place.gpu is gpu)
    return Workspaces(addresses, workspace_size(gpu.model.major))


def driver_view(device: torch.device) -> DriverView | None:
    """The memory of a CUDA device, None for one that this process does not use."""
    if device.type != "cuda" or not _in_use(device.index):
        return None
    free, total = driver_memory(device.index)
    return DriverView(total - free, _held_by_this_process(device.index))


def _in_use(index: int) -> bool:
    machine = simulated_machine()
    return cuda.is_used(index) if machine is None else machine.gpu(index).in_use()


def _held_by_this_process(index: int) -> int | None:
    machine = simulated_machine()
    if machine is not None:
        return machine.gpu(index).driver.process_memory
    try:
        return next(_own_entries(index), None)
    except Exception:  # no NVML, or another process namespace: the driver does not tell
        return None


def _own_entries(index: int) -> Iterator[int]:
    """Bytes that NVML counts for this process; ``nvidia-ml-py`` is optional."""
    pynvml = importlib.import_module("pynvml")
    pynvml.nvmlInit()
    try:
        uuid = f"GPU-{torch.cuda.get_device_properties(index).uuid}"
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
            if process.pid == os.getpid() and process.usedGpuMemory is not None:
                yield int(process.usedGpuMemory)
    finally:
        pynvml.nvmlShutdown()


def _allocation(block: dict[str, Any]) -> Allocation:
    frames = tuple((frame["filename"], frame["line"]) for frame in block.get("frames") or ())
    requested = block.get("requested_size", block["size"])
    return Allocation(block["address"], block["size"], requested, frames)
