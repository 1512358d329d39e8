"""Segments from cudaMalloc: how they are made, and how they go back to the GPU."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from .alloc_conf import NO_LIMIT
from .blocks import Block, BlockPool

if TYPE_CHECKING:
    from .driver import Driver
    from .events import AllocatorEvents
    from .settings import AllocatorSettings
    from .stats import DeviceStats


class Segments:
    """The segments that one cudaMalloc each has made."""

    def __init__(self, driver: Driver, stats: DeviceStats, events: AllocatorEvents) -> None:
        self._driver = driver
        self._stats = stats
        self._events = events

    def allocate(
        self, pool: BlockPool, stream: int, size: int, registration: int, max_split_size: int
    ) -> Block | None:
        """Make a segment of `size` bytes; None when the GPU has too little left."""
        address = self._driver.malloc(size)
        if address is None:
            return None
        self.count(pool, size, max_split_size)
        self._stats.num_device_alloc += 1
        self._events.tell("segment_alloc", address, size, stream)
        return Block(address, size, stream, pool, registration)

    def count(self, pool: BlockPool, size: int, max_split_size: int) -> None:
        """Count a new segment of `size` bytes in."""
        for stats in (self._stats.total, pool.stats):
            stats.segment.increase(1)
            stats.reserved_bytes.increase(size)
        if size >= max_split_size:
            self._stats.oversize_segments.increase(1)

    def release(self, block: Block, max_split_size: int) -> None:
        """Give a whole free segment back to the GPU."""
        # PyTorch fails too where max_split_size_mb was lowered below what a block was split from.
        if block.is_split:
            raise RuntimeError(
                "CUDA error: invalid argument. max_split_size_mb was lowered after a larger block "
                "had been split, and now a part of that segment would be given to cudaFree: set "
                "max_split_size_mb before the first allocation"
            )
        self._stats.num_device_free += 1
        self._driver.free(block.address)
        for stats in (self._stats.total, block.pool.stats):
            stats.segment.decrease(1)
            stats.reserved_bytes.decrease(block.size)
        if block.size >= max_split_size:
            self._stats.oversize_segments.decrease(1)
        block.pool.remove(block)
        self._events.tell("segment_free", block.address, block.size, block.stream)

    def release_all(self, pool: BlockPool, max_split_size: int) -> None:
        """Give every segment of the pool that is free as a whole back to the GPU."""
        for block in pool.free_blocks():
            if block.expandable_segment is None and not block.is_split:
                self.release(block, max_split_size)

    def release_available(
        self, pool: BlockPool, stream: int, size: int, max_split_size: int
    ) -> bool:
        """Give just enough oversize segments back to make room for `size` bytes.

        One that is large enough by itself if there is one, else from the largest down.
        """
        if max_split_size == NO_LIMIT:
            return False
        wanted = max(size, max_split_size)
        entries = pool.free[stream]
        index = bisect_left(entries, (wanted,))
        if index < len(entries) and entries[index][3].expandable_segment is None:
            self.release(entries[index][3], max_split_size)
            return True
        released = 0
        for *_, block in reversed(entries[:index]):
            if released >= wanted or block.size < max_split_size:
                break
            if block.expandable_segment is None:
                released += block.size
                self.release(block, max_split_size)
        return released >= wanted

    def collect_garbage(self, pool: BlockPool, settings: AllocatorSettings, allowed: int) -> None:
        """Give segments back that were not reused for long, once the threshold is passed.

        Those at least as old as the average go first, then the average is taken again, until what
        is above the threshold is reclaimed. An age is the number of searches of the pool.
        """
        threshold = int(settings.garbage_collection_threshold * allowed)
        excess = self._stats.total.reserved_bytes.current - threshold
        if excess <= 0:
            return
        # Expandable blocks that fill their segment count in the average but are never freed here.
        candidates = [block for block in pool.free_blocks() if not block.is_split]
        total_age = sum(map(pool.age, candidates))
        freeable = len(candidates)
        candidates = [block for block in candidates if block.expandable_segment is None]
        reclaimed = 0
        progress = True
        while reclaimed < excess and progress and freeable:
            average = total_age / freeable
            old = [block for block in candidates if pool.age(block) >= average]
            candidates = [block for block in candidates if pool.age(block) < average]
            progress = bool(old)
            for block in old:
                reclaimed += block.size
                total_age -= pool.age(block)
                freeable -= 1
                self.release(block, settings.max_split_size)
