"""Blocks for requests that no free block fits, and the order in which memory is freed for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...errors import UsageError
from .blocks import ExpandableSegment
from .expandable_segments import ExpandableSegments
from .out_of_memory import OutOfMemory, out_of_memory_text, rejection_text
from .segments import Segments
from .settings import SMALL_SEGMENT_SIZE

if TYPE_CHECKING:
    from .blocks import Block, BlockPool
    from .driver import Driver
    from .events import AllocatorEvents
    from .settings import AllocatorSettings
    from .stats import DeviceStats


class BlockSource:
    """Makes segments, within what the GPU and the memory fraction allow."""

    def __init__(
        self,
        driver: Driver,
        stats: DeviceStats,
        settings: AllocatorSettings,
        device: int,
        events: AllocatorEvents,
        *,
        order_by_address: bool,
    ) -> None:
        self.allowed: int | None = None
        self._driver = driver
        self._stats = stats
        self.settings = settings
        self._device = device
        self._events = events
        self._segments = Segments(driver, stats, events)
        self._expandable = ExpandableSegments(driver, stats, events)
        self._age_step = 0 if order_by_address else 1
        self._registrations = 0

    def alloc_block(
        self,
        pool: BlockPool,
        stream: int,
        size: int,
        requested: int,
        *,
        large_pool: BlockPool,
        empty_cache: Callable[[], None],
    ) -> Block:
        """Get a block that is in no pool.

        First the GPU is asked. When it has too little left: after just enough oversize segments
        were given back, if there is a ``max_split_size``; at last after everything that is free
        was given back, which alone counts as a retry.
        """
        settings, stats = self.settings, self._stats
        if self.allowed is not None and settings.garbage_collection_threshold:
            self._segments.collect_garbage(large_pool, settings, self.allowed)
        rejections = stats.num_oom_rejections
        block = self._make_segment(pool, stream, size)
        if block is None and stats.num_oom_rejections == rejections:
            if self._segments.release_available(pool, stream, size, settings.max_split_size):
                block = self._make_segment(pool, stream, size)
            if block is None:
                empty_cache()
                stats.num_alloc_retries += 1
                # PyTorch asks the GPU alone, though a block that fits may be in the pool by now.
                block = self._make_segment(pool, stream, size)
        if block is None:
            if stats.num_oom_rejections != rejections:
                raise OutOfMemory(rejection_text(requested))
            stats.num_ooms += 1
            self._events.tell("oom", self._driver.free_memory(), size, stream)
            raise OutOfMemory(self._out_of_memory_text(size))
        return block

    def release_all(self, pool: BlockPool) -> None:
        """Give the free segments of a pool, and its free pages, back to the GPU."""
        self._segments.release_all(pool, self.settings.max_split_size)
        self._expandable.release_pages(pool)

    def register(self, pool: BlockPool, size: int) -> int:
        """Count a segment of `size` bytes that exists already and return its number."""
        self._segments.count(pool, size, self.settings.max_split_size)
        return self._next_registration()

    def adopt_expandable(self, pool: BlockPool, address: int) -> tuple[ExpandableSegment, int]:
        """An expandable segment that exists already, without its pages, and its number."""
        page_size = self._page_size(pool)
        return self._expandable.segment_at(address, page_size), self._next_registration()

    def count_mapped(self, pool: BlockPool, size: int) -> None:
        """Count `size` bytes of pages that have memory already."""
        for stats in (self._stats.total, pool.stats):
            stats.reserved_bytes.increase(size)

    @property
    def memory_fraction(self) -> float:
        """Share of the GPU that may be used."""
        return 1.0 if self.allowed is None else self.allowed / self._driver.total

    @memory_fraction.setter
    def memory_fraction(self, fraction: float) -> None:
        if not 0 <= fraction <= 1:
            raise UsageError(f"invalid fraction:{fraction}. Please set within [0, 1].")
        self.allowed = int(fraction * self._driver.total) if fraction < 1 else None

    def _make_segment(self, pool: BlockPool, stream: int, size: int) -> Block | None:
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
            return self._expandable.allocate(
                pool, stream, size, registration, self._page_size(pool)
            )
        return self._segments.allocate(
            pool, stream, segment_size, registration, settings.max_split_size
        )

    def _page_size(self, pool: BlockPool) -> int:
        return SMALL_SEGMENT_SIZE if pool.is_small else self.settings.large_segment_size

    def _next_registration(self) -> int:
        self._registrations += self._age_step
        return self._registrations

    def _out_of_memory_text(self, size: int) -> str:
        driver, stats = self._driver, self._stats.total
        return out_of_memory_text(
            segment_size=self.settings.segment_size(size),
            device=self._device,
            total=driver.total,
            free=driver.free_memory(),
            process_memory=driver.process_memory,
            other_processes=driver.other_processes,
            allowed=self.allowed,
            allocated=stats.allocated_bytes.current,
            reserved=stats.reserved_bytes.current,
        )
