"""An observer of the allocator that raises: the change of state is whole, or was not made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
import torch
from support.allocator_invariants import check_allocator, check_machine

from pytorch_memlab import simulate
from pytorch_memlab.simulation.allocator.caching_allocator import CachingAllocator
from pytorch_memlab.simulation.allocator.driver import SimulatedDriver

MB = 2**20
ACTIONS = ["alloc", "free_requested", "free_completed"]


class Refused(Exception):
    pass


class Refusing:
    """Raises at one event."""

    def __init__(self, action: str) -> None:
        self.action: str | None = action

    def __call__(self, action: str, _address: int, _size: int, _stream: int) -> None:
        if action == self.action:
            raise Refused


@contextmanager
def mending(allocator: CachingAllocator) -> Iterator[None]:
    """Something after which an allocator is mended, as a GPU does it, if an observer refuses."""
    try:
        yield
    except Refused:
        with suppress(Refused):
            allocator.mend()
        allocator.mend()


@pytest.mark.parametrize("size", [700, 3 * MB, 30 * MB])
@pytest.mark.parametrize("stream", [0, 3], ids=["one stream", "another stream"])
@pytest.mark.parametrize("action", ACTIONS)
def test_an_observer_that_fails_leaves_the_pools_whole(action: str, stream: int, size: int) -> None:
    allocator = CachingAllocator(SimulatedDriver(200 * MB))
    kept = allocator.malloc(size)
    refusing = Refusing(action)
    allocator.observe(refusing)
    address = 0
    with mending(allocator):
        address = allocator.malloc(size)
    check_allocator(allocator)
    assert bool(address) == (action != "alloc")
    if address:
        if stream:
            allocator.record_stream(address, stream)
        with mending(allocator):
            allocator.free(address)
        check_allocator(allocator)
        with mending(allocator):
            allocator.process_events()
        check_allocator(allocator)
    assert allocator.active_bytes == allocator.block_size(kept)
    refusing.action = None
    allocator.free(kept)
    allocator.empty_cache()
    check_allocator(allocator)
    assert allocator.reserved_bytes == 0


@pytest.mark.parametrize("action", ACTIONS)
def test_an_observer_of_a_simulated_gpu_that_fails_loses_no_memory(action: str) -> None:
    with simulate("1GiB") as machine:
        gpu = machine.gpus[0]
        kept = torch.randn(64, 64, device="cuda")
        kept @ kept
        check_machine(machine)
        refusing = Refusing(action)
        gpu.locked(gpu.allocator.observe, refusing)
        for _ in range(3):
            with suppress(Refused):
                torch.empty(3000, device="cuda")
            with suppress(Refused):
                kept @ kept
        gpu.locked(gpu.allocator.stop_observing, refusing)
        with suppress(Refused):
            torch.cuda.memory_allocated()
        with suppress(Refused):  # one that came in a finalizer
            torch.empty(1, device="cuda")
        for _ in range(6):
            with suppress(Refused):
                torch.empty(1, device="cuda")
        check_machine(machine)
        held = torch.empty(3000, device="cuda")
        check_machine(machine)
        del held
