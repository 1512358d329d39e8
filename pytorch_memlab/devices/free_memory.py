"""The memory of the GPUs of this process as it is now."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """The memory of one GPU."""

    device: int  # its index
    capacity: int  # all bytes
    free: int  # bytes that no process has
    reserved: int  # bytes that PyTorch's allocator has
    cached: int  # those of them that no tensor uses


def free_memory() -> list[FreeMemory]:
    """The memory of each GPU that this process uses; of none if the driver does not tell."""
    # A GPU that no tensor is on counts if it is the current one.
    if not torch.cuda.is_initialized():
        return []
    try:
        return [
            FreeMemory(
                device,
                capacity,
                free,
                reserved,
                reserved - torch.cuda.memory_allocated(device),
            )
            for device in range(torch.cuda.device_count())
            if (reserved := torch.cuda.memory_reserved(device))
            or device == torch.cuda.current_device()
            for free, capacity in [torch.cuda.mem_get_info(device)]
        ]
    except RuntimeError:  # an earlier error of CUDA that lasts
        return []
