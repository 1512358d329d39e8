"""Python has no memory at any one place of a change: it has happened whole then, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from support.allocator_invariants import check_allocator
from support.no_host_memory import fails_at, in_fork

from pytorch_memlab.simulation.allocator.caching_allocator import CachingAllocator
from pytorch_memlab.simulation.allocator.driver import SimulatedDriver
from pytorch_memlab.simulation.allocator.settings import AllocatorSettings
from pytorch_memlab.simulation.machine.allocation_log import AllocationLog

MB = 2**20
SETTINGS = {
    "default": "",
    "expandable": "expandable_segments:True",
    "oversize": "max_split_size_mb:20",
    "collected": "garbage_collection_threshold:0.3",
}
PRIVATE = (0, 7)


class Program:
    """An allocator that has done something, and the blocks that it holds."""

    def __init__(self, settings: str) -> None:
        self.log = AllocationLog()
        self.log.capture = lambda: None  # PyTorch looks for no error of Python in its own
        self.allocator = allocator = CachingAllocator(
            SimulatedDriver(400 * MB), AllocatorSettings.parse(settings), log=self.log
        )
        if settings.startswith("garbage"):
            allocator.set_memory_fraction(0.9)
        self.held = [allocator.malloc(size) for size in (700, 700, 3 * MB, 3 * MB, 3 * MB, 24 * MB)]
        self.large = allocator.malloc(30 * MB, 2)
        self.streams = [allocator.malloc(size) for size in (900, 2 * MB, 2 * MB)]
        self.private = allocator.malloc(5 * MB, pool_id=PRIVATE)
        allocator.free(allocator.malloc(200 * MB))
        for address in self.streams:
            allocator.record_stream(address, 3)
        allocator.record_stream(self.streams[1], 5)
        allocator.free(self.held[1])
        allocator.free(self.held[3])
        allocator.work.sleep(3)
        allocator.free(self.streams[1])

    def state(self) -> tuple[Any, ...]:
        """Segments and counters, without those of all that came and went."""
        stats = self.allocator.memory_stats()
        counters = {
            group: {pool: (stat["current"], stat["peak"]) for pool, stat in pools.items()}
            for group, pools in stats.items()
            if isinstance(pools, dict) and "all" in pools
        }
        oversize = [stats[f"oversize_{name}"]["current"] for name in ("allocations", "segments")]
        return self.allocator.segments(), counters, oversize, list(self.log.live)


def free(program: Program, address: int) -> None:
    if program.allocator.is_allocated(address):
        program.allocator.free(address)


OPERATIONS: dict[str, Callable[[Program], object]] = {
    "malloc of a part": lambda it: it.allocator.malloc(700),
    "malloc of a whole block": lambda it: it.allocator.malloc(3 * MB),
    "malloc of a segment": lambda it: it.allocator.malloc(26 * MB, 4),
    "malloc after a retry": lambda it: it.allocator.malloc(150 * MB, 6),
    "malloc of a private pool": lambda it: it.allocator.malloc(300, pool_id=(0, 9)),
    "free with neighbours": lambda it: free(it, it.held[2]),
    "free of a small block": lambda it: free(it, it.held[0]),
    "free of a large block": lambda it: free(it, it.large),
    "free that waits": lambda it: free(it, it.streams[2]),
    "free that waits for work done": lambda it: free(it, it.streams[0]),
    "record_stream": lambda it: it.allocator.record_stream(it.held[2], 9),
    "process_events": lambda it: (it.allocator.work.finish(), it.allocator.process_events()),
    "empty_cache": lambda it: it.allocator.empty_cache(),
    "snapshot": lambda it: it.allocator.snapshot(),
    "memory_stats": lambda it: it.allocator.memory_stats(),
    "reset of peaks": lambda it: it.allocator.reset_peak_stats(),
    "end of a pool": lambda it: (
        free(it, it.private),
        it.allocator.end_private_pool(PRIVATE),
        it.allocator.empty_cache(PRIVATE),
    ),
}


def go_on(program: Program) -> None:
    allocator = program.allocator
    allocator.free(allocator.malloc(5 * MB))
    allocator.work.finish()
    allocator.malloc(1000)
    allocator.malloc(40 * MB, 2)
    allocator.malloc(2 * MB)


def places(operation: str, settings: str, count: int) -> Iterator[tuple[Program, bool]]:
    """A program at each place where the operation may fail, and whether it did."""
    work = OPERATIONS[operation]
    place, failed = 0, True
    while failed:
        program = Program(SETTINGS[settings])
        failed = fails_at(place, count, lambda program=program: work(program))
        yield program, failed
        place += 1


@pytest.mark.parametrize("count", [1, 2, 30])
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_change_is_whole_or_not_made(operation: str, settings: str, count: int) -> None:
    in_fork(partial(check_at_each_place, operation, settings, count))


def check_at_each_place(operation: str, settings: str, count: int) -> None:
    work = OPERATIONS[operation]
    undisturbed = Program(SETTINGS[settings])
    work(undisturbed)
    expected = undisturbed.state()
    go_on(undisturbed)
    failures = 0
    for program, failed in places(operation, settings, count):
        if failed:
            failures += 1
            program.allocator.mend()
            check_allocator(program.allocator)
            assert program.log.live.keys() == program.allocator._allocated.keys()
            work(program)
        check_allocator(program.allocator)
        assert program.state() == expected
        go_on(program)
        check_allocator(program.allocator)
        assert program.state() == undisturbed.state()
    assert failures


def test_totals_are_all_reset_or_none() -> None:
    in_fork(check_reset_of_totals)


def check_reset_of_totals() -> None:
    before = Program("").allocator.memory_stats()
    place, failed = 0, True
    while failed:
        allocator = Program("").allocator
        failed = fails_at(place, 1, allocator.reset_accumulated_stats)
        stats = allocator.memory_stats()
        if stats != before:
            assert all(
                not stat["allocated"] and not stat["freed"]
                for pools in stats.values()
                if isinstance(pools, dict) and "all" in pools
                for stat in pools.values()
            )
            assert stats["num_device_alloc"] == 0
        allocator.mend()
        assert allocator.memory_stats() == stats
        place += 1
    assert place > 1
    assert stats != before
