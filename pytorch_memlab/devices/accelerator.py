"""An accelerator that is not CUDA (XPU, MPS, ...), through ``torch.accelerator``."""

from __future__ import annotations

import torch

from ..records import DeviceInfo
from .device import Device, Stats, reserved_bytes


def accelerator_type() -> str | None:
    """Type of this machine's accelerator if it is not CUDA and tells its memory, else None."""
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is None or not accelerator.is_available():
        return None
    kind: str = accelerator.current_accelerator().type
    return None if kind == "cuda" or not hasattr(accelerator, "memory_stats") else kind


class AcceleratorDevice(Device):
    """One device of a type such as ``xpu``, by its index."""

    def __init__(self, kind: str, index: int) -> None:
        self._kind = kind
        self._index = index
        self.name = f"{kind}:{index}"

    @property
    def info(self) -> DeviceInfo:
        """Its type, which is all that torch tells for every kind."""
        return DeviceInfo(self.name, self._kind.upper(), simulated=False)

    def stats(self) -> Stats:
        nested: Stats = {}
        for key, value in torch.accelerator.memory_stats(self._index).items():
            *parents, last = key.split(".")
            level = nested
            for parent in parents:
                level = level.setdefault(parent, {})
            level[last] = value
        return nested

    def reset_peaks(self) -> None:
        torch.accelerator.reset_peak_memory_stats(self._index)

    def capacity(self) -> int:
        return int(torch.accelerator.get_memory_info(self._index)[1])

    def taken(self) -> int:
        free, total = torch.accelerator.get_memory_info(self._index)
        return max(int(total) - int(free) - reserved_bytes(self.stats()), 0)
