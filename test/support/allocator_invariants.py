"""Checks of simulated GPUs that hold at any moment: pools, blocks, counters, tables of storages."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from typing import Any

from pytorch_memlab.memory_fields import GROUPS
from pytorch_memlab.simulation.inspect import Machine
from pytorch_memlab.simulation.machine import simulated_gpu


def check_allocator(allocator: Any) -> None:
    """Walk through all pools and blocks of a ``CachingAllocator``."""
    events = allocator._events
    pending = events.pending_blocks()
    allocated = list(allocator._allocated.values())
    free = list(_free_blocks(allocator))
    unmapped = list(_unmapped_blocks(allocator))
    blocks = {id(block): block for block in (*allocated, *pending, *free, *unmapped)}
    assert len(blocks) == len(allocated) + len(pending) + len(free) + len(unmapped)

    assert all(block.allocated and block.mapped for block in allocated)
    assert list(allocator._allocated) == [block.address for block in allocated]
    assert all(not block.allocated and block.event_count for block in pending)
    assert Counter(map(id, events_of(events))) == {id(one): one.event_count for one in pending}
    for block in (*free, *unmapped):
        assert block.is_free
        assert not block.stream_uses
    for block in blocks.values():
        _check_neighbours(block, blocks)
    _check_segments(allocator, blocks.values())
    _check_counters(allocator, allocated, pending, free)


def events_of(events: Any) -> Iterator[Any]:
    """The block of each event that was recorded."""
    yield from events.complete
    yield from (block for _, block in events.waiting)


def _free_blocks(allocator: Any) -> Iterator[Any]:
    for pool in allocator._pools():
        for stream, entries in pool.free.items():
            assert entries == sorted(entries, key=lambda entry: entry[:3])
            for size, registration, address, block in entries:
                assert (size, registration) == (block.size, block.registration)
                assert (stream, address) == (block.stream, block.address)
                assert block.pool is pool
                assert block.mapped
                yield block


def _unmapped_blocks(allocator: Any) -> Iterator[Any]:
    for pool in allocator._pools():
        for stream, entries in pool.unmapped.items():
            assert entries == sorted(entries, key=lambda entry: entry[0])
            for address, block in entries:
                assert (stream, address) == (block.stream, block.address)
                assert block.pool is pool
                assert not block.mapped
                yield block


def _check_neighbours(block: Any, blocks: dict[int, Any]) -> None:
    assert block.size > 0
    after = block.next
    if after is not None:
        assert id(after) in blocks, "a neighbour is in no pool"
        assert after.prev is block
        assert after.address == block.address + block.size
        assert after.pool is block.pool
        assert after.expandable_segment is block.expandable_segment
        joined = block.is_free and after.is_free and block.mapped is after.mapped
        assert not joined, "two free neighbours were not joined"
    if block.prev is not None:
        assert id(block.prev) in blocks, "a neighbour is in no pool"
        assert block.prev.next is block


def _check_segments(allocator: Any, blocks: Any) -> None:
    driver = allocator._driver
    heads = [block for block in blocks if block.prev is None]
    sizes, pages = {}, 0
    for head in heads:
        parts = []
        block = head
        while block is not None:
            parts.append(block)
            block = block.next
        if head.expandable_segment is None:
            sizes[head.address] = sum(part.size for part in parts)
        else:
            assert sum(part.size for part in parts) == head.expandable_segment.size
            pages += sum(part.size for part in parts if part.mapped)
    assert driver._sizes.keys() == sizes.keys()
    assert all(0 <= driver._sizes[address] - size < 2 * 2**20 for address, size in sizes.items())
    assert driver._used == sum(driver._sizes.values()) + pages
    assert allocator.reserved_bytes == sum(sizes.values()) + pages


def _check_counters(
    allocator: Any, allocated: list[Any], pending: list[Any], free: list[Any]
) -> None:
    count: Counter[tuple[str, str]] = Counter()

    def add(block: Any, **amounts: int) -> None:
        for group, amount in amounts.items():
            for pool in ("all", "small_pool" if block.pool.is_small else "large_pool"):
                count[group, pool] += amount

    for block in allocated:
        add(block, allocation=1, allocated_bytes=block.size)
    for block in (*allocated, *pending):
        add(block, active=1, active_bytes=block.size, requested_bytes=block.requested_size)
    for block in free:
        if block.is_split and block.expandable_segment is None:
            add(block, inactive_split=1, inactive_split_bytes=block.size)
    for block in (*allocated, *pending, *free):
        add(block, reserved_bytes=block.size)
        if block.prev is None and block.expandable_segment is None:
            add(block, segment=1)
    stats = allocator.memory_stats()
    for group in GROUPS:
        for pool in ("all", "small_pool", "large_pool"):
            stat = stats[group][pool]
            assert stat["current"] == count[group, pool], (group, pool)
            assert stat["peak"] >= stat["current"], (group, pool)
            assert stat["allocated"] - stat["freed"] == stat["current"], (group, pool)


def check_machine(machine: Machine) -> None:
    """Check all simulated GPUs: each block in use has a living storage, or is a workspace."""
    assert not simulated_gpu._busy.locked()
    assert gc.isenabled()
    living = [*machine.living(), *machine.workspaces.living()]
    for gpu in machine.known_gpus:
        gpu.locked(check_allocator, gpu.allocator)
        allocator: Any = gpu.allocator
        log = gpu.log
        assert log.live.keys() == allocator._allocated.keys()
        assert log.waiting.keys() == {one.address for one in allocator._events.pending_blocks()}
        mine = {one.address: one.nbytes for one in living if one.gpu is gpu and one.address}
        requested = {key: block.requested_size for key, block in allocator._allocated.items()}
        assert requested == mine, "memory that no tensor has, or a tensor without memory"
        estimates = {key: allocator._allocated[key].size for key in gpu._estimates}
        assert gpu._estimates == estimates
        assert gpu._estimated == sum(estimates.values())
    for table in (machine.allocations, machine.pinned):
        assert table._known.keys() == table._deaths.keys()
        assert all(death() is not None for death in table._deaths.values())
    for key, death in machine.allocations._deaths.items():
        storage, allocation = death(), machine.allocations._known[key]
        if storage is not None and allocation.address:
            assert storage.nbytes() == allocation.nbytes
    pinned = machine.pinned_memory.stats()
    assert pinned["active_bytes"]["current"] == sum(machine.pinned.values())
