"""The state of a private pool, kept and set again later, as CUDA graph trees do.

``PrivatePoolState`` and ``setCheckpointPoolState`` of ``c10/cuda/CUDACachingAllocator.cpp``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .blocks import Block, PoolId, PrivatePool

if TYPE_CHECKING:
    from .caching_allocator import CachingAllocator


@dataclass(frozen=True, slots=True)
class _BlockState:
    address: int
    size: int
    allocated: bool


@dataclass(frozen=True, slots=True)
class PoolState:
    """The segments of a private pool at one moment."""

    pool_id: PoolId
    segments: tuple[tuple[_BlockState, ...], ...]


@dataclass(frozen=True, slots=True)
class CheckpointDelta:
    """Addresses of what was freed, and of what is allocated, since the state was set."""

    freed: list[int]
    allocated: list[int]


def checkpoint_state(allocator: CachingAllocator, pool_id: PoolId) -> PoolState:
    """The state of a pool."""
    # Raises RuntimeError if there is no such pool, nothing uses it, or a stream uses a freed block.
    allocator.process_deferred()
    pool = _used_pool(allocator, pool_id, "Could not find pool of id")
    segments = []
    for head in _heads(allocator, pool):
        for block in _chain(head):
            if block.event_count:
                raise RuntimeError("Events should have synchronized when checkpointing block")
        states = (_BlockState(block.address, block.size, block.allocated) for block in _chain(head))
        segments.append(tuple(states))
    return PoolState(pool_id, tuple(segments))


def set_checkpoint_state(allocator: CachingAllocator, state: PoolState) -> CheckpointDelta:
    """Free all blocks of a pool, then allocate those of the state."""
    # Raises RuntimeError if a segment of the state is gone, or is not what it was.
    pool = _used_pool(allocator, state.pool_id, "Could not find private pool id")
    delta = CheckpointDelta([], [])
    for head in _heads(allocator, pool):
        for block in _chain(head):
            if block.allocated:
                _check(not block.event_count)
                delta.freed.append(block.address)
                allocator.free(block.address)
    free = {
        block.address: block for part in (pool.small, pool.large) for block in part.free_blocks()
    }
    for segment in state.segments:
        address = segment[0].address
        if address not in free:
            raise RuntimeError(f" could not find {address:#x}")
        _set_segment(allocator, free[address], segment, delta)
    return delta


def _set_segment(
    allocator: CachingAllocator,
    block: Block | None,
    segment: tuple[_BlockState, ...],
    delta: CheckpointDelta,
) -> None:
    """Cut a free segment into the blocks of a state, all allocated, then free some of them."""
    blocks = []
    for left, state in zip(range(len(segment) - 1, -1, -1), segment, strict=True):
        assert block is not None
        if block.expandable_segment is not None and not left:
            # the addresses of an expandable segment that have no memory
            _check(block.next is None and not block.mapped)
            break
        block.pool.remove(block)
        splits = block.size > state.size
        allocator.alloc_found_block(block, state.size, state.size, splits=splits)
        _check((block.address, block.size) == (state.address, state.size))
        blocks.append((block, state))
        block = block.next
        _check((block is not None) == bool(left))
    for block, state in blocks:
        if state.allocated:
            delta.allocated.append(block.address)
        else:
            allocator.free(block.address)


def live_allocations(allocator: CachingAllocator, pool_id: PoolId) -> set[int]:
    """The addresses of the blocks of a pool that the program has not freed."""
    pool = _used_pool(allocator, pool_id, "Could not find pool of id", or_freeable=True)
    return {
        address
        for address, block in allocator.allocated_blocks.items()
        if block.pool.private is pool
    }


def _used_pool(
    allocator: CachingAllocator, pool_id: PoolId, error: str, *, or_freeable: bool = False
) -> PrivatePool:
    pool = allocator.private.by_id.get(pool_id)
    if pool is None:
        raise RuntimeError(error)
    if not (pool.use_count or or_freeable):
        raise RuntimeError("Not expected to checkpoint freeable graph")
    return pool


def _heads(allocator: CachingAllocator, pool: PrivatePool) -> list[Block]:
    """The first block of each segment of a pool that has memory there."""
    allocated = allocator.allocated_blocks.values()
    free = (block for part in (pool.small, pool.large) for block in part.free_blocks())
    heads = (*(block for block in allocated if block.pool.private is pool), *free)
    return [block for block in heads if block.prev is None]


def _chain(block: Block | None) -> Iterator[Block]:
    while block is not None:
        yield block
        block = block.next


def _check(holds: bool) -> None:
    """PyTorch's checks of the state; pytorch#161356 has programs that fail."""
    if not holds:
        raise RuntimeError("the segments of the pool are not those of the checkpointed state")
