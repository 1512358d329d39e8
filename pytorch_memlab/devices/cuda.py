"""A real CUDA device, through the public calls of ``torch.cuda``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..records import DeviceInfo
from .driver_memory import driver_memory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .device import Stats

_memory_stats = torch.cuda.memory_stats_as_nested_dict
_reset_peaks = torch.cuda.reset_peak_memory_stats


def is_used(index: int) -> bool:
    """Whether this process uses a GPU: it does once it has made a context on it.

    Asking makes none. Where torch cannot tell, every GPU counts once CUDA is initialised.

    Args:
        index: as in ``cuda:index``.
    """
    if not torch.cuda.is_initialized():
        return False
    has_context = getattr(torch._C, "_cuda_hasPrimaryContext", None)
    return has_context is None or bool(has_context(index))


class CudaDevice:
    """One GPU.

    Args:
        index: as in ``cuda:index``.
    """

    approximations = None
    peak_share = None

    def __init__(self, index: int) -> None:
        self._index = index
        self.name = f"cuda:{index}"

    @property
    def info(self) -> DeviceInfo:
        """Its name as the driver gives it."""
        name = torch.cuda.get_device_name(self._index)
        return DeviceInfo(self.name, name, simulated=False)

    def stats(self) -> Stats:
        """Counters of the caching allocator; empty before CUDA is initialised."""
        stats: Stats = _memory_stats(self._index)
        return stats

    def reset_peaks(self) -> None:
        """Set the allocator's peaks to the current values."""
        _reset_peaks(self._index)

    def restore_peaks(self, peaks: Mapping[str, Any]) -> bool:
        """The allocator has no way to raise a peak again."""
        return False

    def capacity(self) -> int:
        """Bytes on the card."""
        return int(torch.cuda.get_device_properties(self._index).total_memory)

    def taken(self) -> int:
        """Bytes of the context and of other processes, as they are now."""
        free, total = driver_memory(self._index)
        reserved = self.stats().get("reserved_bytes", {}).get("all", {}).get("current", 0)
        return max(total - free - int(reserved), 0)

    def context(self) -> None:
        """The driver counts all processes together."""

    def notes(self) -> tuple[str, ...]:
        """Nothing is to be said."""
        return ()

    def attach(self) -> None:
        """Counters are there anyway."""

    def detach(self) -> None:
        """Counters are there anyway."""
