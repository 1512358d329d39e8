"""PyTorch's allocator of pinned memory: sizes are powers of two, and blocks are used again."""

from __future__ import annotations

from collections import Counter
from typing import Any

from .stats import Stat

_STATS = ("allocations", "allocated_bytes", "active_requests", "active_bytes")


class PinnedMemory:
    """The blocks of the caching host allocator."""

    # How long CUDA takes for it is not simulated: all times are 0.

    def __init__(self) -> None:
        self._free: Counter[int] = Counter()
        self._stats = {name: Stat() for name in _STATS}

    def take(self, nbytes: int) -> int:
        if not nbytes:
            return 0
        size = 1 << (nbytes - 1).bit_length()
        if self._free[size]:
            self._free[size] -= 1
        else:
            self._stats["allocations"].change(1)
            self._stats["allocated_bytes"].change(size)
        self._stats["active_requests"].change(1)
        self._stats["active_bytes"].change(size)
        return size

    def give_back(self, size: int) -> None:
        if size:
            self._free[size] += 1
            self._stats["active_requests"].change(-1)
            self._stats["active_bytes"].change(-size)

    def empty_cache(self) -> None:
        free, self._free = self._free, Counter()
        for size, count in free.items():
            self._stats["allocations"].change(-count)
            self._stats["allocated_bytes"].change(-size * count)

    def stats(self) -> dict[str, Any]:
        """As ``torch.cuda.host_memory_stats_as_nested_dict()`` returns them."""
        blocks = self._stats["allocations"]
        return {
            **{name: stat.as_dict() for name, stat in self._stats.items()},
            "num_host_alloc": blocks.allocated,
            "num_host_free": blocks.freed,
            "host_alloc_time": _no_time(blocks.allocated),
            "host_free_time": _no_time(blocks.freed),
        }

    def reset_peaks(self) -> None:
        for stat in self._stats.values():
            stat.peak = stat.current

    def reset_accumulated(self) -> None:
        for stat in self._stats.values():
            stat.allocated = stat.freed = 0


def _no_time(count: int) -> dict[str, int]:
    return {"total": 0, "max": 0, "min": 0, "count": count, "avg": 0}
