"""The segments of one device: how they are made, how they grow, and how they go back to the GPU.

A segment is what one cudaMalloc gives, or it is expandable: a range of addresses of which pages get
memory as they are needed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

from ...errors import UsageError
from .blocks import Block, BlockPool, ExpandableSegment, counts_of
from .driver import SimulatedDriver
from .events import AllocatorEvents
from .settings import NO_LIMIT, SMALL_SEGMENT_SIZE, AllocatorSettings
from .stats import DeviceStats


class Segments:
    """Makes segments, within what the GPU and the memory fraction allow."""

    def __init__(
        self,
        driver: SimulatedDriver,
        stats: DeviceStats,
        settings: AllocatorSettings,
        events: AllocatorEvents,
        *,
        order_by_address: bool,
    ) -> None:
        self.allowed: int | None = None
        self.settings = settings
        self._driver = driver
        self._stats = stats
        self._events = events
        # The lowest block of each segment by address; None while it is made.
        self.heads: dict[int, Block | None] = {}
        self._age_step = 0 if order_by_address else 1
        self._registrations = 0

    def release_all(self, pool: BlockPool) -> None:
        """Give the free segments of a pool, and its free pages, back to the GPU."""
        for block in pool.free_blocks():
            if block.expandable_segment is None and not block.is_split:
                self._release(block)
        for block in pool.free_blocks():
            if block.expandable_segment is not None:
                self._unmap(block)

    def blocks(self) -> list[Block]:
        """All blocks: those in use, the free ones, and those without memory."""
        blocks = []
        for block in self.heads.values():
            while block is not None:
                blocks.append(block)
                block = block.next
        return blocks

    def join_free_blocks(self) -> None:
        """Join what a change that ended half way left apart."""
        for block in self.heads.values():
            while block is not None:
                after = block.next
                if (
                    after is not None
                    and block.is_free
                    and after.is_free
                    and block.mapped is after.mapped
                ):
                    block.take_in(after)
                else:
                    block = after

    def recount(self) -> None:
        """Count what the blocks take of the GPU, and the blocks."""
        blocks = self.blocks()
        self._stats.recount(counts_of(blocks, self._stats.total))
        segments: Counter[int] = Counter()
        ranges: dict[int, int] = {}
        pages = 0
        address = 0
        for block in blocks:
            segment = block.expandable_segment
            if segment is not None:
                ranges[segment.address] = segment.size
                pages += block.size if block.mapped else 0
                continue
            if block.prev is None:
                address = block.address
            segments[address] += block.size
        self._driver.recount(segments, ranges, pages)

    def register(self, pool: BlockPool, size: int) -> int:
        """Count a segment of `size` bytes that exists already and return its number."""
        self._count_segment(pool, size, 1)
        if size >= self.settings.max_split_size:
            self._stats.oversize_segments.change(1)
        return self._next_registration()

    def adopt_expandable(self, pool: BlockPool, address: int) -> tuple[ExpandableSegment, int]:
        """An expandable segment that exists already, without its pages, and its number."""
        return self._expandable_at(pool, address), self._next_registration()

    def count_reserved(self, pool: BlockPool, size: int) -> None:
        """Count bytes that got memory, or lost it if the number is negative."""
        self._stats.total.reserved_bytes.change(size)
        pool.stats.reserved_bytes.change(size)
        if pool.private is not None:
            for name in pool.names:
                pool.private.reserved_bytes[name].change(size)

    @property
    def memory_fraction(self) -> float:
        return 1.0 if self.allowed is None else self.allowed / self._driver.total

    @memory_fraction.setter
    def memory_fraction(self, fraction: float) -> None:
        if not 0 <= fraction <= 1:
            raise UsageError(f"invalid fraction:{fraction}. Please set within [0, 1].")
        self.allowed = int(fraction * self._driver.total) if fraction < 1 else None

    def make_segment(self, pool: BlockPool, stream: int, size: int) -> Block | None:
        settings = self.settings
        segment_size = settings.segment_size(size)
        needed = self._stats.total.reserved_bytes.current + segment_size
        if settings.throw_on_cudamalloc_oom and needed > int(
            settings.per_process_memory_fraction * self._driver.total
        ):
            self._stats.num_oom_rejections += 1
            return None
        if self.allowed is not None and needed > self.allowed:
            return None
        registration = self._next_registration()
        if settings.expandable_segments:
            return self._grow(pool, stream, size, registration)
        address = self._driver.malloc(segment_size)
        if address is None:
            return None
        block = Block(address, segment_size, stream, pool, registration)
        calls = self._stats.num_device_alloc + 1
        self.heads[address] = None
        if segment_size >= settings.max_split_size:
            self._stats.oversize_segments.change(1)
        self.heads[address] = block
        self._stats.num_device_alloc = calls
        self._count_segment(pool, segment_size, 1)
        self._events.tell("segment_alloc", address, segment_size, stream, pool)
        return block

    def _count_segment(self, pool: BlockPool, size: int, count: int) -> None:
        """Count a segment that was made, or that went back if the count is -1."""
        self._stats.total.segment.change(count)
        pool.stats.segment.change(count)
        self.count_reserved(pool, count * size)

    def _release(self, block: Block) -> None:
        """Give a whole free segment back to the GPU."""
        # PyTorch fails too where max_split_size_mb was lowered below what a block was split from.
        if block.is_split:
            raise RuntimeError(
                "CUDA error: invalid argument. max_split_size_mb was lowered after a larger block "
                "had been split, and now a part of that segment would be given to cudaFree: set "
                "max_split_size_mb before the first allocation"
            )
        calls = self._stats.num_device_free + 1
        self._driver.free(block.address)
        if block.size >= self.settings.max_split_size:
            self._stats.oversize_segments.change(-1)
        del self.heads[block.address]
        self._stats.num_device_free = calls
        self._count_segment(block.pool, block.size, -1)
        block.pool.remove(block)
        self._events.tell("segment_free", block.address, block.size, block.stream, block.pool)

    def release_available(self, pool: BlockPool, stream: int, size: int) -> bool:
        """Give just enough oversize segments back to make room for `size` bytes."""
        # One that is large enough by itself if there is one, else from the largest down.
        max_split_size = self.settings.max_split_size
        if max_split_size == NO_LIMIT:
            return False
        wanted = max(size, max_split_size)
        entries = pool.free[stream]
        index = bisect_left(entries, (wanted,))
        if index < len(entries) and entries[index][3].expandable_segment is None:
            self._release(entries[index][3])
            return True
        released = 0
        for *_, block in reversed(entries[:index]):
            if released >= wanted or block.size < max_split_size:
                break
            if block.expandable_segment is None:
                released += block.size
                self._release(block)
        return released >= wanted

    def collect_garbage(self, pool: BlockPool, allowed: int) -> None:
        """Give segments back that were not reused for long, once the threshold is passed."""
        # Those at least as old as the average go first, then the average is taken again, until what
        # is above the threshold is reclaimed. An age is the number of searches of the pool.
        threshold = int(self.settings.garbage_collection_threshold * allowed)
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
                self._release(block)

    def _grow(self, pool: BlockPool, stream: int, size: int, registration: int) -> Block | None:
        """Give the pages of the lowest suitable addresses memory."""
        block = _first_with_room(pool, stream, size)
        if block is None:
            segment = self._expandable_at(pool, None)
            block = Block(segment.address, segment.size, stream, pool, registration, segment)
            block.mapped = False
            self.heads[segment.address] = block
            pool.add_unmapped(block)
        grown = block if block.mapped else self._map(block, min(block.size, size))
        while grown is not None and grown.size < size:
            following = grown.next
            assert following is not None
            grown = self._map(following, min(size - grown.size, following.size))
        if grown is not None:
            pool.remove(grown)
        return grown

    def _expandable_at(self, pool: BlockPool, address: int | None) -> ExpandableSegment:
        """An expandable segment at an address, None for a free one."""
        # It has an eighth more than the GPU: pages in the middle may have to lie idle.
        page_size = SMALL_SEGMENT_SIZE if pool.is_small else self.settings.large_segment_size
        total = self._driver.total
        pages = -(-(total + total // 8) // page_size)
        if address is None:
            address = self._driver.reserve(page_size * pages)
        return ExpandableSegment(address, page_size, pages)

    def _map(self, block: Block, size: int) -> Block | None:
        """Give pages of a block memory; returns them as a part of the block that they make."""
        segment = block.expandable_segment
        assert segment is not None
        mapped = segment.page_end(block.address + size) - block.address
        address = block.address
        if not self._driver.map(address, mapped):
            return None
        pool = block.pool
        calls = self._stats.num_device_alloc + 1
        pool.remove_unmapped(block)
        if mapped < block.size:
            rest = block.part(address + mapped, block.size - mapped)
            rest.mapped = False
            block.cut(mapped, rest)
            pool.add_unmapped(rest)
        block.mapped = True
        self._stats.num_device_alloc = calls
        for neighbour in (block.prev, block.next):
            block = pool.merge(block, neighbour)
        pool.add(block)
        self.count_reserved(pool, mapped)
        self._events.tell("segment_map", address, mapped, block.stream, pool)
        return block

    def _unmap(self, block: Block) -> None:
        segment = block.expandable_segment
        assert segment is not None
        start = segment.page_end(block.address)
        size = segment.page_start(block.address + block.size) - start
        if size <= 0:
            return
        self._driver.unmap(start, size)
        pool = block.pool
        calls = self._stats.num_device_free + 1
        pool.remove(block)
        end, block_end = start + size, block.address + block.size
        if block_end > end:
            after = block.part(end, block_end - end)
            block.cut(end - block.address, after)
            pool.add(after)
        if start > block.address:
            before, block = block, block.part(start, size)
            before.cut(start - before.address, block)
            pool.add(before)
        block.mapped = False
        self._stats.num_device_free = calls
        for neighbour in (block.prev, block.next):
            block = pool.merge(block, neighbour)
        self.count_reserved(pool, -size)
        self._events.tell("segment_unmap", start, size, block.stream, pool)
        if block.is_split:
            pool.add_unmapped(block)
        else:
            del self.heads[segment.address]
            self._driver.release(segment.address, segment.size)

    def _next_registration(self) -> int:
        self._registrations += self._age_step
        return self._registrations


def _first_with_room(pool: BlockPool, stream: int, size: int) -> Block | None:
    """The first block of an expandable segment that has or can get so many bytes."""
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
