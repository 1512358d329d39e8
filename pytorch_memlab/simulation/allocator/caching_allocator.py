"""PyTorch's CUDA caching allocator, block for block, without CUDA and without torch.

The rules are those of PyTorch 2.13: how requests become blocks, which free block serves one, when a
segment is made or given back, what is counted. Nothing here locks: calls must come one after the
other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from ...errors import UsageError
from .blocks import DEFAULT_POOL, Block, BlockPool, ExpandableSegment, PoolId, segments_of
from .driver import SimulatedDriver
from .events import AllocatorEvents, BlockLog, Observer
from .generations import Generations
from .out_of_memory import (
    TOO_LARGE,
    DeviceOutOfMemoryError,
    FreeBlock,
    PrivateMemory,
    out_of_memory_text,
    rejection_text,
)
from .private_pools import PrivatePools
from .segments import Segments
from .settings import MIN_BLOCK_SIZE, SMALL_SIZE, AllocatorSettings
from .stats import DeviceStats
from .stream_work import StreamEvents

ONE_EXABYTE = 2**60
"""``one_exa_bytes`` in ``NativeCachingAllocator::allocate`` of ``CUDACachingAllocator.cpp``."""


class CachingAllocator:
    """The allocator of one device."""

    # Note [Changes that end half way]
    #
    # Python may have no memory for the next number or list, and an observer may raise, between any
    # two steps of a change. What must be right at each moment is little: the blocks of each segment
    # (`Segments.heads`), whether they are allocated, and the events that freed ones wait for. Such
    # a fact changes in a few stores to attributes, which cannot fail, once all that they store is
    # made; a counter that does not follow from the facts changes right before them. All else, the
    # lists of the pools, the tables and the counters, follows from the facts, and comes after them.
    # So a change that ends half way has happened, or it has not, and `mend` counts again.

    def __init__(
        self,
        driver: SimulatedDriver,
        settings: AllocatorSettings = AllocatorSettings(),  # noqa: B008 - it is frozen
        device: int = 0,
        *,
        # Of free blocks of one size PyTorch 2.13 takes the one of the oldest segment, earlier
        # releases the one at the lowest address.
        order_by_address: bool = False,
        log: BlockLog | None = None,
    ) -> None:
        self.device = device
        self.ever_allocated = False
        self.is_making_room = False
        self.settings = settings
        self._driver = driver
        self._told = AllocatorEvents(log)
        self._stats = stats = DeviceStats()
        self.active: Final = stats.total.active_bytes
        """Bytes of blocks that are allocated, or freed and still in use by a stream."""
        self._small = BlockPool(is_small=True, stats=stats.small_pool)
        self._large = BlockPool(is_small=False, stats=stats.large_pool)
        self.private = PrivatePools(stats)
        self.captures = 0  # of streams that are underway: ``markCaptureBegin``
        self.stream_captures: Callable[[], bool] = lambda: True
        """Whether the current stream is one of them; asked while there are some."""
        self._allocated: dict[int, Block] = {}
        self._segments = Segments(
            driver, stats, settings, self._told, order_by_address=order_by_address
        )
        self._events = StreamEvents()
        self._lost: Block | None = None  # allocated for a call that failed
        self.generations = Generations()
        self.work = self._events.work  # that streams have not done
        self.begin_with(settings)

    def begin_with(self, settings: AllocatorSettings) -> None:
        """Take the settings that PyTorch makes the allocator with."""
        size = settings.max_split_size
        self._stats.max_split_size = size - 2**64 if size >= 2**63 else size
        self.change_settings(settings)
        self.set_memory_fraction(settings.per_process_memory_fraction)

    def malloc(self, size: int, stream: int = 0, pool_id: PoolId | None = None) -> int:
        """Serve a request, of a private pool if one is named, and return the address."""
        # Raises DeviceOutOfMemoryError if the GPU has no room.
        if size <= 0:
            if size:
                raise UsageError(f"size must be 0 or more bytes, not {size}")
            return 0
        if size >= ONE_EXABYTE:
            raise DeviceOutOfMemoryError(TOO_LARGE)
        # In a capture, PyTorch asks no stream what it has done: cudaEventQuery is not permitted.
        events = self._events
        has_events = events.complete or events.waiting or events.deferred
        if has_events and pool_id is None and not self._is_capture_context:
            self.process_events()
        if pool_id is None and self.private.filters:
            pool_id = self.private.of_stream(stream)
        if self._rounds_to_512:
            rounded = (size + (MIN_BLOCK_SIZE - 1)) & -MIN_BLOCK_SIZE
        else:
            rounded = self.settings.round_size(size)
        if pool_id is None:
            pool = self._small if rounded <= SMALL_SIZE else self._large
        else:
            pool = self.private.block_pool(pool_id, is_small=rounded <= SMALL_SIZE)
        if self._segments.allowed is not None and self.settings.garbage_collection_threshold:
            pool.search_count += 1
        block = pool.get_free_block(stream, rounded, self.settings)
        if block is None:
            self.is_making_room = True
            try:
                block = self._alloc_block(pool, stream, rounded, size)
            finally:
                self.is_making_room = False
            self.ever_allocated = True
        address = block.address
        log = self._told.log
        try:
            pool = block.pool
            splits = pool.splits(block, rounded, self.settings)
            self._count_allocated(block, size, *pool.cut_off(block, rounded, splits=splits))
            if log is not None:
                log.allocated(address, block.size, size, stream)
            if self._told.observers:
                self._told.tell_observers("alloc", address, size, stream, block.pool)
        except BaseException:
            self._lost = block
            raise
        return address

    def free(self, address: int) -> None:
        """Take memory back; it stays cached."""
        if not address:
            return
        block = self._allocated.get(address)
        if block is None:
            raise UsageError(f"invalid device pointer: {address:#x} is not an allocation")
        size = block.size
        events, uses = self._events, block.stream_uses
        waits = bool(uses)
        recorded = deferred = None
        if uses and self._is_capture_context:
            deferred = [*events.deferred, block]
        elif uses:
            recorded = events.recorded(block, uses)
        if size >= self.settings.max_split_size:
            self._stats.oversize_allocations.change(-1)
        if recorded is not None:
            events.complete, events.waiting, block.event_count = recorded
            block.stream_uses = None
        elif deferred is not None:
            events.deferred = deferred
        block.allocated = False
        del self._allocated[address]
        self._stats.total.free_requested(size)
        block.pool.stats.free_requested(size)
        self.generations.freed(block.number, size)
        log = self._told.log
        if log is not None:
            log.freed(address, waits=waits)
        if self._told.observers:
            requested = block.requested_size
            self._told.tell_observers(
                "free_requested", address, requested, block.stream, block.pool
            )
        if not waits:
            self._free_block(block)

    def record_stream(self, address: int, stream: int) -> None:
        """Tell that `stream` uses an allocation too, so that a free waits for its work."""
        if not address:
            return
        block = self._allocated.get(address)
        if block is None:
            raise UsageError(f"invalid device pointer: {address:#x} is not an allocation")
        if stream != block.stream:
            if block.stream_uses is None:
                block.stream_uses = set()
            block.stream_uses.add(stream)
            if self._is_capture_context:
                block.capture_uses = (block.capture_uses or set()) | {stream}

    def process_events(self) -> None:
        """Free the blocks whose streams have finished; every allocation begins with this."""
        self.process_deferred()
        for block in self._events.finished_blocks():
            self._complete_free(block)

    def process_deferred(self) -> None:
        """Record the events of the blocks that were freed in a capture."""
        for block in self._events.deferred_without_use():
            self._complete_free(block)

    def empty_cache(self, pool_id: PoolId | None = None) -> None:
        """Wait for all streams and give every free segment and page back to the GPU."""
        # Those of a private pool go back if nothing uses the pool any more. With an argument, only
        # those of this pool do. In a capture those of the default pool stay.
        if pool_id is None and not self._is_capture_context:
            self._stats.num_sync_all_streams += 1
            self._events.wait_for_all()
            self.process_events()
            for pool in (self._large, self._small):
                self._segments.release_all(pool)
        self._empty_private_pools(pool_id)

    def end_private_pool(self, pool_id: PoolId) -> None:
        """Tell that no graph and no MemPool uses a private pool any more."""
        self.private.of_id(pool_id).use_count = 0

    @property
    def event_pool_id(self) -> PoolId:
        """The pool of the event that the observers are called with."""
        pool = self._told.pool
        return DEFAULT_POOL if pool is None or pool.private is None else pool.private.pool_id

    @property
    def allocated_blocks(self) -> Mapping[int, Block]:
        """The blocks that serve requests, by address."""
        return self._allocated

    def segment_of(self, address: int) -> tuple[int, int]:
        """The first address of an allocated block's segment, and its bytes of addresses."""
        block = self._allocated[address]
        if block.expandable_segment is not None:
            return block.expandable_segment.address, block.expandable_segment.size
        head = block
        while head.prev is not None:
            head = head.prev
        size, part = head.size, head.next
        while part is not None:
            size, part = size + part.size, part.next
        return head.address, size

    @property
    def active_bytes(self) -> int:
        """Bytes of blocks that are allocated, or freed and still in use by a stream."""
        return self.active.current

    @property
    def reserved_bytes(self) -> int:
        return self._stats.total.reserved_bytes.current

    def is_allocated(self, address: int) -> bool:
        return address in self._allocated

    def block_size(self, address: int) -> int:
        return self._allocated[address].size

    @property
    def allowed_bytes(self) -> int | None:
        """Bytes that the memory fraction allows, None without one."""
        return self._segments.allowed

    def free_blocks(self) -> list[FreeBlock]:
        """The blocks that are kept for later requests, without those that have no memory."""
        return [
            FreeBlock(block.size, block.stream)
            for pool in (self._small, self._large)
            for block in pool.free_blocks()
            if block.mapped
        ]

    def private_memory(self) -> PrivateMemory:
        """The memory of private pools, without the places of captures."""
        pools = [pool for private in self.private for pool in (private.small, private.large)]
        free = (block for pool in pools for block in pool.free_blocks() if block.mapped)
        return PrivateMemory(self.private_reserved_bytes, sum(block.size for block in free))

    @property
    def private_reserved_bytes(self) -> int:
        """The bytes of all private pools."""
        return sum(private.reserved_bytes["all"].current for private in self.private)

    def change_settings(self, settings: AllocatorSettings) -> None:
        """Work by other settings from now on."""
        # What is there stays as it is: the limit that the memory fraction set, expandable blocks
        # (which serve no request while segments do not expand), and the ``max_split_size`` that the
        # statistics show.
        self.settings = settings
        self._segments.settings = settings
        self._rounds_to_512 = not any(settings.roundup_power2_divisions)

    @property
    def memory_fraction(self) -> float:
        return self._segments.memory_fraction

    def set_memory_fraction(self, fraction: float) -> None:
        self._segments.memory_fraction = fraction

    def observe(self, observer: Observer) -> None:
        """Call an observer with every event from now on, next to those that are called already."""
        self._told.add(observer)

    def stop_observing(self, observer: Observer) -> None:
        self._told.remove(observer)

    def blocks_in_use(self) -> Iterator[tuple[int, int, int]]:
        """Address, size and bytes requested of every active block."""
        for block in (*self._allocated.values(), *self._events.pending_blocks()):
            yield block.address, block.size, block.requested_size

    def memory_stats(self) -> dict[str, Any]:
        """Return the counters nested as ``torch.cuda.memory_stats_as_nested_dict()`` does."""
        return self._stats.as_nested_dict()

    def reset_peak_stats(self) -> None:
        self._stats.reset_peaks()

    def reset_accumulated_stats(self) -> None:
        """Set what was allocated and freed, and the event counters, to zero."""
        self._stats.reset_accumulated()

    def restore_peaks(self, peaks: Mapping[str, Any]) -> None:
        """Set the peaks to those of an earlier `memory_stats()`, never below what is now."""
        self._stats.restore_peaks(peaks)

    def snapshot(self) -> list[dict[str, Any]]:
        """Return the segments and their blocks as ``torch.cuda.memory_snapshot()`` does."""
        self._told.tell("snapshot", 0, self.active_bytes, 0)
        return self.segments()

    def segments(self) -> list[dict[str, Any]]:
        """As `snapshot`, without an event for the observers."""
        return segments_of(self._segments.blocks(), self.device)

    def mend(self) -> None:
        """Make whole what an error left half done. See Note [Changes that end half way]."""
        # It has to be called before anything else is done, again if it fails itself.
        self._segments.join_free_blocks()
        blocks = self._segments.blocks()
        self._events.recount(blocks)
        in_use = {block.address: block for block in blocks if block.allocated}
        for address in self._allocated.keys() - in_use.keys():
            del self._allocated[address]
        self._allocated.update(in_use)
        for pool in self._pools():
            pool.fill(block for block in blocks if block.pool is pool and block.is_free)
        self._segments.recount()
        self.generations.recount([(block.number, block.size) for block in in_use.values()])
        log = self._told.log
        if log is not None:
            log.settle(in_use, {block.address for block in self._events.pending_blocks()})
        lost = self._lost
        if lost is not None and lost.allocated:
            self.free(lost.address)
        self._lost = None

    def take_back(self, address: int) -> None:
        """Let `mend` free what `malloc` returned: nothing fails here, and no caller has it."""
        self._lost = self._allocated[address]

    def adopt_segment(
        self,
        address: int,
        stream: int,
        blocks: list[tuple[int, int | None]],
        *,
        is_small: bool,
        pool_id: PoolId | None = None,
    ) -> None:
        """Take over a segment that exists already, as a recording shows it."""
        pool = self._pool(is_small, pool_id)
        registration = self._segments.register(pool, sum(size for size, _ in blocks))
        parts = [(size, requested, True) for size, requested in blocks]
        self._adopt(pool, address, stream, parts, registration, None)

    def adopt_expandable_segment(
        self,
        address: int,
        stream: int,
        ranges: list[tuple[int, list[tuple[int, int | None]]]],
        *,
        is_small: bool,
        pool_id: PoolId | None = None,
    ) -> None:
        pool = self._pool(is_small, pool_id)
        segment, registration = self._segments.adopt_expandable(pool, address)
        parts: list[tuple[int, int | None, bool]] = []
        end = address
        for start, blocks in (*ranges, (segment.address + segment.size, [])):
            if start > end:
                parts.append((start - end, None, False))
            parts += [(size, requested, True) for size, requested in blocks]
            end = start + sum(size for size, _ in blocks)
        mapped = sum(size for size, _, is_mapped in parts if is_mapped)
        self._segments.count_reserved(pool, mapped)
        self._adopt(pool, address, stream, parts, registration, segment)

    def _alloc_block(self, pool: BlockPool, stream: int, size: int, requested: int) -> Block:
        """Get a block that is in no pool."""
        # First the GPU is asked. When it has too little left: the MemPools with ``use_on_oom``; the
        # GPU after just enough oversize segments were given back, if there is a ``max_split_size``;
        # at last, unless in a capture, after everything that is free was given back, which alone
        # counts as a retry.
        segments, stats = self._segments, self._stats
        if segments.allowed is not None and self.settings.garbage_collection_threshold:
            segments.collect_garbage(self._large, segments.allowed)
        rejections = stats.num_oom_rejections
        block = segments.make_segment(pool, stream, size)
        if block is None and stats.num_oom_rejections == rejections:
            block = self._free_block_on_oom(pool, stream, size)
            if block is None and segments.release_available(pool, stream, size):
                block = segments.make_segment(pool, stream, size)
            if block is None and not self._is_capture_context:
                self.empty_cache()
                stats.num_alloc_retries += 1
                # PyTorch asks the GPU alone, though a block that fits may be in the pool by now.
                block = segments.make_segment(pool, stream, size)
        if block is None:
            if stats.num_oom_rejections != rejections:
                raise DeviceOutOfMemoryError(rejection_text(requested))
            stats.num_ooms += 1
            self._told.tell("oom", self._driver.free_memory(), size, stream, pool)
            raise DeviceOutOfMemoryError(self._out_of_memory_text(size))
        return block

    def _free_block_on_oom(self, pool: BlockPool, stream: int, size: int) -> Block | None:
        """A free block of a MemPool with ``use_on_oom``, for a request of the default pool."""
        if pool.private is None:
            settings = replace(self.settings, expandable_segments=False)
            for pool_id in self.private.served_on_oom:
                other = self.private.block_pool(pool_id, is_small=pool.is_small)
                block = other.get_free_block(stream, size, settings)
                if block is not None:
                    return block
        return None

    def _out_of_memory_text(self, size: int) -> str:
        """PyTorch's error for a request that was rounded to so many bytes."""
        total = self._stats.total
        return out_of_memory_text(
            segment_size=self.settings.segment_size(size),
            device=self.device,
            total=self._driver.total,
            free=self._driver.free_memory(),
            process_memory=self._driver.process_memory,
            other_processes=self._driver.other_processes,
            allowed=self._segments.allowed,
            allocated=total.allocated_bytes.current,
            private=self.private_memory().unused,
            reserved=total.reserved_bytes.current,
        )

    @property
    def _is_capture_context(self) -> bool:
        """True if the current stream is captured."""
        return bool(self.captures) and self.stream_captures()

    def alloc_found_block(self, block: Block, size: int, requested: int, *, splits: bool) -> None:
        """Count a block that is in no pool as allocated: its low addresses, if it is split."""
        self._count_allocated(block, requested, *block.pool.cut_off(block, size, splits=splits))

    def _count_allocated(
        self, block: Block, requested: int, free_parts: int, free_bytes: int
    ) -> None:
        """Count a block as allocated, and what its cut changed."""
        size, stats, total = block.size, block.pool.stats, self._stats.total
        if free_bytes and block.expandable_segment is None:
            total.inactive_split_changed(free_parts, free_bytes)
            stats.inactive_split_changed(free_parts, free_bytes)
        if size >= self.settings.max_split_size:
            self._stats.oversize_allocations.change(1)
        block.requested_size = requested
        block.allocated = True
        self._allocated[block.address] = block
        total.block_allocated(size, requested)
        stats.block_allocated(size, requested)
        block.number = self.generations.allocated(size)

    def _complete_free(self, block: Block) -> None:
        if self._told.log is not None:
            self._told.log.completed(block.address)
        self._free_block(block)

    def _free_block(self, block: Block) -> None:
        """Put a block that is no longer used into its pool, joined with free neighbours."""
        pool = block.pool
        size = block.size
        address = block.address
        requested = block.requested_size
        joined = 0
        for neighbour in (block.prev, block.next):
            if neighbour is not None and not neighbour.allocated:
                before = block.size
                block = pool.merge(block, neighbour)
                if block.size != before:
                    joined += 1
        pool.add(block)
        if block.expandable_segment is None:
            if block.prev is not None or block.next is not None:
                self._count_inactive_split(pool, 1 - joined, size)
            else:
                self._count_inactive_split(pool, -joined, size - block.size)
        self._stats.total.free_completed(size, requested)
        pool.stats.free_completed(size, requested)
        if self._told.observers:
            self._told.tell_observers("free_completed", address, requested, block.stream, pool)

    def _adopt(
        self,
        pool: BlockPool,
        address: int,
        stream: int,
        parts: list[tuple[int, int | None, bool]],
        registration: int,
        expandable_segment: ExpandableSegment | None,
    ) -> None:
        """Take over blocks: size, requested size (None: free), and whether it has memory."""
        before: Block | None = None
        for size, requested, is_mapped in parts:
            block = Block(address, size, stream, pool, registration, expandable_segment)
            block.mapped = is_mapped
            if before is None:
                self._segments.heads[address] = block
            else:
                before.cut(before.size, block)
            if not is_mapped:
                pool.add_unmapped(block)
            elif requested is not None:
                self._count_allocated(block, requested, 0, 0)
            else:
                pool.add(block)
                if len(parts) > 1 and expandable_segment is None:
                    self._count_inactive_split(pool, 1, size)
            address += size
            before = block
        self.ever_allocated = True

    def _pool(self, is_small: bool, pool_id: PoolId | None) -> BlockPool:
        if pool_id is None:
            return self._small if is_small else self._large
        return self.private.block_pool(pool_id, is_small=is_small)

    def _pools(self) -> Iterator[BlockPool]:
        yield from (self._small, self._large)
        for private in self.private:
            yield from (private.small, private.large)

    def _empty_private_pools(self, pool_id: PoolId | None) -> None:
        """Give back what private pools, or one of them, keep and nothing uses any more."""
        for private in self.private.freeable(pool_id):
            if pool_id is not None:
                self._stats.num_sync_all_streams += 1
                self._events.wait_for_all(private)
                self.process_events()
            for pool in (private.small, private.large):
                self._segments.release_all(pool)
            self.private.forget_empty(private)

    def _count_inactive_split(self, pool: BlockPool, blocks: int, size: int) -> None:
        if size:
            self._stats.total.inactive_split_changed(blocks, size)
            pool.stats.inactive_split_changed(blocks, size)
