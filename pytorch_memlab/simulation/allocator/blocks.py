"""Blocks of device memory, the pools that keep the free ones in order, and snapshots of them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

from .settings import MIN_BLOCK_SIZE, SMALL_SIZE, AllocatorSettings
from .stats import DeviceStats, PoolStats, Stat

PoolId: TypeAlias = tuple[int, int]
"""Of a private pool: a CUDA graph's, or a ``torch.cuda.MemPool``."""

DEFAULT_POOL: Final[PoolId] = (0, 0)


class ExpandableSegment:
    """A range of addresses of a stream, without memory at first."""

    __slots__ = ("address", "page_size", "size")

    def __init__(self, address: int, page_size: int, pages: int) -> None:
        self.address = address
        self.page_size = page_size
        self.size = page_size * pages

    def page_end(self, address: int) -> int:
        """Return the address where the page ends that holds the byte before `address`."""
        return self.address - (self.address - address) // self.page_size * self.page_size

    def page_start(self, address: int) -> int:
        """Return the address where the page of `address` begins."""
        return address - (address - self.address) % self.page_size


class Block:
    """A part of a segment, or a whole one: allocated, free, or waiting to become free."""

    __slots__ = (
        "address",
        "allocated",
        "capture_uses",
        "event_count",
        "expandable_segment",
        "gc_count_base",
        "mapped",
        "next",
        "number",
        "pool",
        "prev",
        "registration",
        "requested_size",
        "size",
        "stream",
        "stream_uses",
    )

    def __init__(
        self,
        address: int,
        size: int,
        stream: int,
        pool: BlockPool,
        registration: int,
        expandable_segment: ExpandableSegment | None = None,
    ) -> None:
        self.address = address
        self.size = size
        self.stream = stream
        self.pool = pool
        self.registration = registration
        self.expandable_segment = expandable_segment
        self.requested_size = 0
        self.allocated = False
        self.mapped = True
        self.prev: Block | None = None
        self.next: Block | None = None
        self.stream_uses: set[int] | None = None
        self.capture_uses: set[int] | None = None  # those of them that a capture added
        self.event_count = 0
        self.gc_count_base = 0
        self.number = 0  # in the order of allocation, while it is allocated

    @property
    def is_split(self) -> bool:
        """True if it is a part of a larger segment."""
        return self.prev is not None or self.next is not None

    @property
    def is_free(self) -> bool:
        """True if neither the program nor a stream uses it (it may have no memory behind it)."""
        return not (self.allocated or self.event_count or self.stream_uses)

    def part(self, address: int, size: int) -> Block:
        """A block of the same segment."""
        return Block(
            address, size, self.stream, self.pool, self.registration, self.expandable_segment
        )

    def cut(self, size: int, rest: Block) -> None:
        """Keep the first ``size`` bytes; the rest is another block of the segment."""
        rest.prev = self
        rest.next = after = self.next
        if after is not None:
            after.prev = rest
        self.next = rest
        self.size = size

    def take_in(self, after: Block) -> None:
        """Be one block with the next one."""
        size = self.size + after.size
        self.next = last = after.next
        if last is not None:
            last.prev = self
        self.size = size


FreeEntry: TypeAlias = tuple[int, int, int, Block]


class BlockPool:
    """Blocks of one size class: the free ones in the order in which they are searched."""

    # Free blocks are ordered by stream, size, then the order in which their segments were made,
    # then address, so the first that is large enough is the best fit. Blocks of an expandable
    # segment without memory behind them are kept apart, by address.

    def __init__(
        self, *, is_small: bool, stats: PoolStats, private: PrivatePool | None = None
    ) -> None:
        self.is_small = is_small
        self.names = ("all", "small_pool" if is_small else "large_pool")  # that statistics have
        self.stats = stats
        self.private = private  # the private pool that it belongs to
        self.free: defaultdict[int, list[FreeEntry]] = defaultdict(list)
        self.unmapped: defaultdict[int, list[tuple[int, Block]]] = defaultdict(list)
        self.search_count = 0

    def get_free_block(self, stream: int, size: int, settings: AllocatorSettings) -> Block | None:
        """Take the first free block of `stream` that has `size` bytes out."""
        # Of an expandable segment, the block counts as large as it can grow, and serves nothing
        # while segments do not expand. No further block is tried where that one is oversize for the
        # request, or too large to be left whole.
        entries = self.free[stream]
        index = bisect_left(entries, (size,))
        if index == len(entries):
            return None
        block = entries[index][3]
        if block.expandable_segment is not None:
            if settings.expandable_segments:
                while (  # this block can grow, and the next one to less
                    index + 1 < len(entries)
                    and entries[index][3].expandable_segment is not None
                    and _grown_size(entries[index + 1][3]) < _grown_size(entries[index][3])
                ):
                    index += 1
            else:
                while index < len(entries) and entries[index][3].expandable_segment is not None:
                    index += 1
                if index == len(entries):
                    return None
            block = entries[index][3]
        if size < settings.max_split_size:
            if block.size >= settings.max_split_size:
                return None
        elif block.size >= size + settings.max_non_split_rounding_size:
            return None
        del entries[index]
        return block

    def splits(self, block: Block, size: int, settings: AllocatorSettings) -> bool:
        """True if what a request leaves of a block becomes a free block."""
        # If it has 512 bytes or more; in the large pool, unless segments expand, if it has more
        # than 1 MiB.
        remaining = block.size - size
        if self.private is not None and not self.private.splits:
            return False
        if self.is_small or settings.expandable_segments:
            return remaining >= MIN_BLOCK_SIZE
        return remaining > SMALL_SIZE and size < settings.max_split_size

    def cut_off(self, block: Block, size: int, *, splits: bool) -> tuple[int, int]:
        """Leave a block that is in no pool its low addresses, if it is split, and keep the rest."""
        # Returns by how much the number of free blocks that are parts of a segment grows, and by
        # how many bytes.
        was_split = block.prev is not None or block.next is not None
        if not splits:
            return (-1, -block.size) if was_split else (0, 0)
        remaining = block.size - size
        rest = block.part(block.address + size, remaining)
        block.cut(size, rest)
        self.add(rest)
        return (0, -size) if was_split else (1, remaining)

    def add(self, block: Block) -> None:
        block.gc_count_base = self.search_count
        insort(self.free[block.stream], (block.size, block.registration, block.address, block))

    def remove(self, block: Block) -> None:
        entries = self.free[block.stream]
        del entries[bisect_left(entries, (block.size, block.registration, block.address))]

    def add_unmapped(self, block: Block) -> None:
        insort(self.unmapped[block.stream], (block.address, block))

    def remove_unmapped(self, block: Block) -> None:
        entries = self.unmapped[block.stream]
        del entries[bisect_left(entries, (block.address,))]

    def free_blocks(self) -> Iterator[Block]:
        """Yield the free blocks in order; the pool may change in between."""
        for stream in sorted(self.free):
            for entry in self.free[stream].copy():
                yield entry[3]

    def age(self, block: Block) -> int:
        """Return how many searches a free block has seen (counted for garbage collection only)."""
        return self.search_count - block.gc_count_base

    def merge(self, block: Block, neighbour: Block | None) -> Block:
        """Join a block with a neighbour if that is free; returns the lower one, which remains."""
        if neighbour is None or not neighbour.is_free or neighbour.mapped is not block.mapped:
            return block
        if neighbour.mapped:
            self.remove(neighbour)
        else:
            self.remove_unmapped(neighbour)
        if block.prev is neighbour:
            neighbour.take_in(block)
            return neighbour
        block.take_in(neighbour)
        return block

    def fill(self, blocks: Iterable[Block]) -> None:
        """Hold these free blocks, and no others."""
        self.free.clear()
        self.unmapped.clear()
        for block in blocks:
            if block.mapped:
                insort(
                    self.free[block.stream], (block.size, block.registration, block.address, block)
                )
            else:
                self.add_unmapped(block)


class PrivatePool:
    """The blocks of CUDA graphs or a ``torch.cuda.MemPool``, which serve no other requests."""

    def __init__(self, pool_id: PoolId, stats: DeviceStats) -> None:
        self.pool_id = pool_id
        self.reserved_bytes = stats.add_private_pool(pool_id)
        self.small = BlockPool(is_small=True, stats=stats.small_pool, private=self)
        self.large = BlockPool(is_small=False, stats=stats.large_pool, private=self)
        self.use_count = 1  # graphs and MemPools that use it
        self.splits = True  # whether segments are split


def _grown_size(block: Block) -> int:
    after = block.next
    return block.size + (after.size if after is not None and not after.mapped else 0)


def counts_of(blocks: Iterable[Block], total: PoolStats) -> Counter[Stat]:
    """Count blocks as the statistics of all pools and of each pool do."""
    counts: Counter[Stat] = Counter()
    for block in blocks:
        if not block.mapped:
            continue
        size, pool = block.size, block.pool
        for stats in (total, pool.stats):
            counts[stats.reserved_bytes] += size
            if block.allocated:
                counts[stats.allocation] += 1
                counts[stats.allocated_bytes] += size
            if not block.is_free:
                counts[stats.active] += 1
                counts[stats.active_bytes] += size
                counts[stats.requested_bytes] += block.requested_size
            if block.expandable_segment is None:
                if block.prev is None:
                    counts[stats.segment] += 1
                if block.is_free and block.is_split:
                    counts[stats.inactive_split] += 1
                    counts[stats.inactive_split_bytes] += size
        if pool.private is not None:
            for name in pool.names:
                counts[pool.private.reserved_bytes[name]] += size
    return counts


def segments_of(blocks: Iterable[Block], device: int) -> list[dict[str, Any]]:
    """Return one dictionary for each segment, by address."""
    heads = [
        block for block in blocks if block.mapped and (block.prev is None or not block.prev.mapped)
    ]
    return [_segment(head, device) for head in sorted(heads, key=lambda head: head.address)]


def _segment(head: Block, device: int) -> dict[str, Any]:
    blocks = []
    block: Block | None = head
    while block is not None and block.mapped:
        blocks.append(_block(block))
        block = block.next
    allocated = [block for block in blocks if block["state"] == "active_allocated"]
    active = [block for block in blocks if block["state"] != "inactive"]
    private = head.pool.private
    return {
        "device": device,
        "address": head.address,
        "total_size": _sum(blocks, "size"),
        "allocated_size": _sum(allocated, "size"),
        "active_size": _sum(active, "size"),
        "requested_size": _sum(active, "requested_size"),
        "stream": head.stream,
        "segment_type": "small" if head.pool.is_small else "large",
        "segment_pool_id": DEFAULT_POOL if private is None else private.pool_id,
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
