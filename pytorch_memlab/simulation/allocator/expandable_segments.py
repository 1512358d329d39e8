"""Segments that grow: a range of addresses of which pages get memory as they are needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .blocks import Block, BlockPool, ExpandableSegment

if TYPE_CHECKING:
    from .driver import Driver
    from .events import AllocatorEvents
    from .stats import DeviceStats


class ExpandableSegments:
    """The expandable segments of one device."""

    def __init__(self, driver: Driver, stats: DeviceStats, events: AllocatorEvents) -> None:
        self._driver = driver
        self._stats = stats
        self._events = events

    def allocate(
        self, pool: BlockPool, stream: int, size: int, registration: int, page_size: int
    ) -> Block | None:
        """Give the pages of the lowest suitable addresses memory."""
        block = self._find(pool, stream, size)
        if block is None:
            block = self._reserve(pool, stream, page_size, registration)
        if not block.mapped and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            following = block.next
            assert following is not None
            if not self._map(following, min(size - block.size, following.size)):
                return None
            block = following
        pool.remove(block)
        return block

    def segment_at(self, address: int, page_size: int) -> ExpandableSegment:
        """A segment that exists already."""
        return ExpandableSegment(address, page_size, self._pages(page_size))

    def release_pages(self, pool: BlockPool) -> None:
        """Take the memory of all pages away that lie wholly in free blocks."""
        for block in pool.free_blocks():
            if block.expandable_segment is not None:
                self._unmap(block)

    def _find(self, pool: BlockPool, stream: int, size: int) -> Block | None:
        for _, unmapped in pool.unmapped[stream]:
            before = unmapped.prev
            block = before if before is not None and before.is_free else unmapped
            room = 0
            part: Block | None = block
            while part is not None and part.is_free and room < size:
                room += part.size
                part = part.next
            if room >= size:
                return block
        return None

    def _reserve(self, pool: BlockPool, stream: int, page_size: int, registration: int) -> Block:
        pages = self._pages(page_size)
        segment = ExpandableSegment(self._driver.reserve(page_size * pages), page_size, pages)
        address = segment.address
        block = Block(address, segment.size, stream, pool, registration, segment)
        block.mapped = False
        pool.add_unmapped(block)
        return block

    def _pages(self, page_size: int) -> int:
        """An eighth more than the GPU has: pages in the middle may have to lie idle."""
        total = self._driver.total
        return -(-(total + total // 8) // page_size)

    def _map(self, block: Block, size: int) -> bool:
        segment = block.expandable_segment
        assert segment is not None
        mapped = segment.page_end(block.address + size) - block.address
        address = block.address
        if not self._driver.map(address, mapped):
            return False
        pool = block.pool
        pool.remove_unmapped(block)
        block.mapped = True
        if mapped < block.size:
            rest = _part(block, block.address + mapped, block.size - mapped)
            rest.mapped = False
            rest.link_between(block, block.next)
            pool.add_unmapped(rest)
            block.size = mapped
        pool.merge(block, block.prev)
        pool.merge(block, block.next)
        pool.add(block)
        for stats in (self._stats.total, pool.stats):
            stats.reserved_bytes.increase(mapped)
        self._stats.num_device_alloc += 1
        self._events.tell("segment_map", address, mapped, block.stream)
        return True

    def _unmap(self, block: Block) -> None:
        segment = block.expandable_segment
        assert segment is not None
        start = segment.page_end(block.address)
        size = segment.page_start(block.address + block.size) - start
        if size <= 0:
            return
        self._driver.unmap(start, size)
        pool = block.pool
        pool.remove(block)
        end, block_end = start + size, block.address + block.size
        if start > block.address:
            before = _part(block, block.address, start - block.address)
            before.link_between(block.prev, block)
            pool.add(before)
        if block_end > end:
            after = _part(block, end, block_end - end)
            after.link_between(block, block.next)
            pool.add(after)
        block.address, block.size, block.mapped = start, size, False
        pool.merge(block, block.prev)
        pool.merge(block, block.next)
        for stats in (self._stats.total, pool.stats):
            stats.reserved_bytes.decrease(size)
        self._stats.num_device_free += 1
        self._events.tell("segment_unmap", start, size, block.stream)
        if block.is_split:
            pool.add_unmapped(block)
        else:
            self._driver.release(segment.address, segment.size)


def _part(block: Block, address: int, size: int) -> Block:
    return Block(
        address, size, block.stream, block.pool, block.registration, block.expandable_segment
    )
