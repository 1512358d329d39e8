"""The stream of allocations and frees of a program, simulated and recorded."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytorch_memlab.simulation import simulate
from pytorch_memlab.simulation.caching_allocator import CachingAllocator
from pytorch_memlab.simulation.driver import RecordedDriver

FOLDER = Path(__file__).parents[3] / "shared" / "ground_truth"

Event = tuple[str, int]
"""``alloc`` or ``free``, and the bytes requested."""


def load(name: str) -> dict[str, Any]:
    """A recorded trace.

    Args:
        name: of its file, without endings.
    """
    path = FOLDER / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"the recorded traces are not here: {path.name} is not beside the repository")
    with gzip.open(path) as file:
        trace: dict[str, Any] = json.load(file)
    return trace


def recorded_events(trace: dict[str, Any]) -> list[tuple[str, int, int]]:
    """Kind, address and size of every allocation and free of a trace."""
    return [
        (kind, address, size)
        for kind, address, size, *_ in trace["events"]
        if kind in ("alloc", "free")
    ]


class ObservedAllocator(CachingAllocator):
    """An allocator that writes down what it is asked.

    Args:
        driver: where memory comes from.
        settings: of the allocator.
    """

    def __init__(self, driver: Any, settings: Any) -> None:
        super().__init__(driver, settings, order_by_address=True)
        self.events: list[tuple[str, int, int]] = []
        self._sizes: dict[int, int] = {}

    def malloc(self, size: int, stream: int = 0) -> int:
        address = super().malloc(size, stream)
        if address:
            self._sizes[address] = size
            self.events.append(("alloc", address, size))
        return address

    def free(self, address: int) -> None:
        if address in self._sizes:
            self.events.append(("free", address, self._sizes.pop(address)))
        super().free(address)


def simulated_events(
    gpu: str, program: Callable[..., None], trace: dict[str, Any], **options: Any
) -> tuple[list[tuple[str, int, int]], dict[str, Any]]:
    """Run a program under simulation, on the segments of a recording.

    Args:
        gpu: the preset to simulate.
        program: is given a function to call where the recording ends.
        trace: whose segments the driver hands out.
        options: of ``simulate``.

    Returns:
        kind, address and size of every allocation and free, and the allocator's counters.
    """
    driver = RecordedDriver()
    driver.expected.extend(
        (index, address, size)
        for index, (kind, address, size, *_) in enumerate(trace["events"])
        if kind == "segment_alloc"
    )
    found: list[Any] = []
    with simulate(gpu, **options) as machine:
        simulated = machine.gpus[0]
        allocator = ObservedAllocator(driver, simulated.allocator.settings)
        simulated.allocator = allocator

        def recorded() -> None:
            found.append((list(allocator.events), allocator.memory_stats()))

        program(recorded)
    [result] = found
    assert driver.surprises == []
    return result
