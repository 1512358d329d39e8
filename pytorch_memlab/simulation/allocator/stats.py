"""The counters that ``torch.cuda.memory_stats()`` shows, with their reset rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ...memory_fields import EVENTS, GROUPS, OVERSIZE_GROUPS, POOLS

PRIVATE_RESERVED: Final = "reserved_bytes_by_private_pools"


class Stat:
    """One statistic of one pool: what it is now, its peak, and all that came and went."""

    __slots__ = ("allocated", "current", "freed", "peak")

    def __init__(self) -> None:
        self.current = 0
        self.peak = 0
        self.allocated = 0
        self.freed = 0

    # A change is whole or not made: nothing fails once the first number is stored.

    def change(self, amount: int) -> None:
        current = self.current + amount
        if amount > 0:
            self.allocated += amount
            if current > self.peak:
                self.peak = current
        else:
            self.freed -= amount
        self.current = current

    def as_dict(self) -> dict[str, int]:
        return {
            "current": self.current,
            "peak": self.peak,
            "allocated": self.allocated,
            "freed": self.freed,
        }


class PoolStats:
    """The nine statistics of one pool, or of both pools together."""

    __slots__ = GROUPS

    def __init__(self) -> None:
        self.allocation = Stat()
        self.segment = Stat()
        self.active = Stat()
        self.inactive_split = Stat()
        self.allocated_bytes = Stat()
        self.reserved_bytes = Stat()
        self.active_bytes = Stat()
        self.inactive_split_bytes = Stat()
        self.requested_bytes = Stat()

    # Each allocation and each free comes here for its pool and for both pools together. Calls of
    # `Stat.change` would take as long as the rest of the allocator.

    def block_allocated(self, size: int, requested_size: int) -> None:
        """Count a block of `size` bytes handed out for a request of `requested_size` bytes."""
        for stat in (self.allocation, self.active):
            current = stat.current + 1
            stat.allocated += 1
            stat.current = current
            if current > stat.peak:
                stat.peak = current
        for stat in (self.allocated_bytes, self.active_bytes):
            current = stat.current + size
            stat.allocated += size
            stat.current = current
            if current > stat.peak:
                stat.peak = current
        stat = self.requested_bytes
        current = stat.current + requested_size
        stat.allocated += requested_size
        stat.current = current
        if current > stat.peak:
            stat.peak = current

    def free_requested(self, size: int) -> None:
        """Count that the program gave a block of `size` bytes back."""
        stat = self.allocation
        current = stat.current - 1
        stat.freed += 1
        stat.current = current
        stat = self.allocated_bytes
        current = stat.current - size
        stat.freed += size
        stat.current = current

    def free_completed(self, size: int, requested_size: int) -> None:
        """Count that a block of `size` bytes can be used again."""
        stat = self.active
        current = stat.current - 1
        stat.freed += 1
        stat.current = current
        stat = self.active_bytes
        current = stat.current - size
        stat.freed += size
        stat.current = current
        stat = self.requested_bytes
        current = stat.current - requested_size
        stat.freed += requested_size
        stat.current = current

    def inactive_split_changed(self, blocks: int, size: int) -> None:
        """Count a net change of free blocks that are parts of a larger segment."""
        if blocks:
            self.inactive_split.change(blocks)
        self.inactive_split_bytes.change(size)


class DeviceStats:
    """All statistics of one device."""

    def __init__(self) -> None:
        self.max_split_size = -1  # no limit: a signed number of 64 bits
        self.total = PoolStats()
        self.small_pool = PoolStats()
        self.large_pool = PoolStats()
        self.oversize_allocations = Stat()
        self.oversize_segments = Stat()
        self.num_alloc_retries = 0
        self.num_ooms = 0
        self.num_sync_all_streams = 0
        self.num_device_alloc = 0
        self.num_device_free = 0
        self.num_oom_rejections = 0
        self._private: dict[str, dict[str, Stat]] = {}  # reserved bytes of private pools
        pools = (self.total, self.small_pool, self.large_pool)
        self._groups = [(group, *(getattr(pool, group) for pool in pools)) for group in GROUPS]
        self._stats: dict[tuple[str, ...], Stat] = {
            **{
                (group, name): stat
                for group, *stats in self._groups
                for name, stat in zip(POOLS, stats, strict=True)
            },
            **{(group,): getattr(self, group) for group in OVERSIZE_GROUPS},
        }

    def as_nested_dict(self) -> dict[str, Any]:
        """Return what ``torch.cuda.memory_stats_as_nested_dict()`` returns, keys in its order."""
        # Every line of a profiled program that allocates comes here.
        nested: dict[str, Any] = {
            "num_alloc_retries": self.num_alloc_retries,
            "num_ooms": self.num_ooms,
            "max_split_size": self.max_split_size,
            "num_sync_all_streams": self.num_sync_all_streams,
            "num_device_alloc": self.num_device_alloc,
            "num_device_free": self.num_device_free,
            "num_oom_rejections": self.num_oom_rejections,
        }
        for group, total, small, large in self._groups:
            nested[group] = {
                "all": total.as_dict(),
                "small_pool": small.as_dict(),
                "large_pool": large.as_dict(),
            }
            if group == "reserved_bytes":
                nested[PRIVATE_RESERVED] = {
                    pool: {name: stat.as_dict() for name, stat in stats.items()}
                    for pool, stats in self._private.items()
                }
        nested["oversize_allocations"] = self.oversize_allocations.as_dict()
        nested["oversize_segments"] = self.oversize_segments.as_dict()
        return nested

    def recount(self, counts: Mapping[Stat, int]) -> None:
        """Set what follows from the blocks; that of oversize ones does not."""
        for path, stat in self._stats.items():
            if path[0] not in OVERSIZE_GROUPS:
                stat.change(counts[stat] - stat.current)

    def reset_peaks(self) -> None:
        for stat in self._stats.values():
            stat.peak = stat.current

    def reset_accumulated(self) -> None:
        """Set what was allocated and freed, and the event counters, to zero."""
        stats, events = iter(self._stats.values()), iter(EVENTS)  # nothing fails after this
        for stat in stats:
            stat.allocated = stat.freed = 0
        for name in events:
            setattr(self, name, 0)

    def add_private_pool(self, pool_id: tuple[int, int]) -> dict[str, Stat]:
        """Show the reserved bytes of a private pool from now on; they are those returned."""
        first, second = pool_id
        stats = self._private[f"{first}_{second}"] = {name: Stat() for name in POOLS}
        for name, stat in stats.items():
            self._stats[PRIVATE_RESERVED, f"{first}_{second}", name] = stat
        return stats

    def restore_peaks(self, peaks: Mapping[str, Any]) -> None:
        """Set every peak to the one in `peaks`, or to the current value where that is more."""
        restored: list[tuple[Stat, int]] = []
        for path, stat in self._stats.items():
            saved: Any = peaks
            for key in path:
                saved = saved.get(key, {})
            if "peak" in saved:
                restored.append((stat, max(stat.current, saved["peak"])))
        for stat, peak in restored:
            stat.peak = peak
