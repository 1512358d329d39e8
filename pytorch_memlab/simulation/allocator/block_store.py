"""The two pools and the blocks in use: how a block is split, counted, joined again and shown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .blocks import Block, BlockPool
from .settings import MIN_BLOCK_SIZE, SMALL_SIZE

if TYPE_CHECKING:
    from .blocks import ExpandableSegment
    from .events import AllocatorEvents
    from .settings import AllocatorSettings
    from .stats import DeviceStats


class BlockStore:
    """The blocks of one device."""

    def __init__(
        self, stats: DeviceStats, settings: AllocatorSettings, events: AllocatorEvents
    ) -> None:
        self._stats = stats
        self._events = events
        self.settings = settings
        self.small = BlockPool(is_small=True, stats=stats.small_pool)
        self.large = BlockPool(is_small=False, stats=stats.large_pool)
        self.allocated: dict[int, Block] = {}

    def alloc_found_block(self, block: Block, size: int, requested: int) -> Block:
        """Split off what is not needed of a block that is in no pool, and count it as allocated.

        The allocation takes the low addresses. What is left becomes a free block if it has 512
        bytes or more; in the large pool, unless segments expand, if it has more than 1 MiB.
        """
        pool = block.pool
        settings = self.settings
        was_split = block.prev is not None or block.next is not None
        remaining = block.size - size
        if (
            remaining >= MIN_BLOCK_SIZE
            if pool.is_small or settings.expandable_segments
            else remaining > SMALL_SIZE and size < settings.max_split_size
        ):
            rest = block
            block = Block(
                rest.address, size, rest.stream, pool, rest.registration, rest.expandable_segment
            )
            block.link_between(rest.prev, rest)
            rest.address += size
            rest.size = remaining
            pool.add(rest)
            change = (0, -size) if was_split else (1, remaining)
        else:
            change = (-1, -block.size) if was_split else (0, 0)
        if block.expandable_segment is None:
            self._count_inactive_split(pool, *change)
        self._activate(block, requested)
        return block

    def request_free(self, block: Block) -> None:
        """Count that the program gave a block back; other streams may still use it."""
        block.allocated = False
        size = block.size
        self._stats.total.free_requested(size)
        block.pool.stats.free_requested(size)
        if size >= self.settings.max_split_size:
            self._stats.oversize_allocations.change(-1)

    def free_block(self, block: Block) -> None:
        """Put a block that is no longer used into its pool, joined with free neighbours."""
        pool = block.pool
        size = block.size
        for observer in self._events.observers:
            observer("free_completed", block.address, block.requested_size, block.stream)
        blocks_change = size_change = 0
        for neighbour in (block.prev, block.next):
            gained = pool.merge(block, neighbour)
            if gained:
                blocks_change -= 1
                size_change -= gained
        pool.add(block)
        if block.expandable_segment is None:
            if block.prev is not None or block.next is not None:
                blocks_change += 1
                size_change += block.size
            self._count_inactive_split(pool, blocks_change, size_change)
        self._stats.total.free_completed(size, block.requested_size)
        pool.stats.free_completed(size, block.requested_size)

    def adopt(
        self,
        pool: BlockPool,
        address: int,
        stream: int,
        blocks: list[tuple[int, int | None]],
        registration: int,
        expandable_segment: ExpandableSegment | None = None,
        before: Block | None = None,
    ) -> Block | None:
        """Take over the blocks of a segment that exists already, or of a range of its pages."""
        for size, requested in blocks:
            block = Block(address, size, stream, pool, registration, expandable_segment)
            block.link_between(before, None)
            if requested is not None:
                self._activate(block, requested)
            else:
                pool.add(block)
                if len(blocks) > 1 and expandable_segment is None:
                    self._count_inactive_split(pool, 1, size)
            address += size
            before = block
        return before

    def adopt_unmapped(
        self,
        pool: BlockPool,
        address: int,
        size: int,
        stream: int,
        registration: int,
        expandable_segment: ExpandableSegment,
        before: Block | None,
    ) -> Block | None:
        """Take over pages without memory; the arguments are those of ``adopt``."""
        if size <= 0:
            return before
        block = Block(address, size, stream, pool, registration, expandable_segment)
        block.mapped = False
        block.link_between(before, None)
        pool.add_unmapped(block)
        return block

    def _activate(self, block: Block, requested: int) -> None:
        block.allocated = True
        block.requested_size = requested
        self.allocated[block.address] = block
        size = block.size
        self._stats.total.block_allocated(size, requested)
        block.pool.stats.block_allocated(size, requested)
        if size >= self.settings.max_split_size:
            self._stats.oversize_allocations.change(1)

    def _count_inactive_split(self, pool: BlockPool, blocks: int, size: int) -> None:
        if size:
            self._stats.total.inactive_split_changed(blocks, size)
            pool.stats.inactive_split_changed(blocks, size)


def segments_of(blocks: Iterable[Block], device: int) -> list[dict[str, Any]]:
    """Return one dictionary for each segment, by address."""
    heads = [block for block in blocks if block.prev is None or not block.prev.mapped]
    return [_segment(head, device) for head in sorted(heads, key=lambda head: head.address)]


def _segment(head: Block, device: int) -> dict[str, Any]:
    blocks = []
    block: Block | None = head
    while block is not None and block.mapped:
        blocks.append(_block(block))
        block = block.next
    allocated = [one for one in blocks if one["state"] == "active_allocated"]
    active = [one for one in blocks if one["state"] != "inactive"]
    return {
        "device": device,
        "address": head.address,
        "total_size": _sum(blocks, "size"),
        "allocated_size": _sum(allocated, "size"),
        "active_size": _sum(active, "size"),
        "requested_size": _sum(active, "requested_size"),
        "stream": head.stream,
        "segment_type": "small" if head.pool.is_small else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": head.expandable_segment is not None,
        "frames": [],
        "blocks": blocks,
    }


def _block(block: Block) -> dict[str, Any]:
    if block.allocated:
        state = "active_allocated"
    else:
        state = "inactive" if block.is_free else "active_pending_free"
    return {
        "address": block.address,
        "size": block.size,
        "requested_size": block.requested_size,
        "state": state,
        "frames": [],
    }


def _sum(blocks: list[dict[str, Any]], key: str) -> int:
    return sum(block[key] for block in blocks)
