"""The stream of allocations and frees of a program, simulated and recorded."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pytorch_memlab.simulation import simulate
from pytorch_memlab.simulation.allocator.caching_allocator import CachingAllocator
from pytorch_memlab.simulation.allocator.driver import RecordedDriver, Step
from pytorch_memlab.simulation.allocator.events import GROWTH
from pytorch_memlab.simulation.allocator.settings import AllocatorSettings
from pytorch_memlab.simulation.machine.cublas_workspaces import workspace_size

FOLDER = Path(__file__).parents[1] / "data" / "recordings"

Event = tuple[str, int]
"""``alloc`` or ``free``, and the bytes requested."""


def load(name: str) -> dict[str, Any]:
    """A recorded trace.

    Args:
        name: of its file, without endings.
    """
    with gzip.open(FOLDER / f"{name}.json.gz") as file:
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
        """Ignore blocks from before the recording: its allocator has none of them."""
        if address in self._sizes:
            self.events.append(("free", address, self._sizes.pop(address)))
            super().free(address)


def simulated_events(
    gpu: str, program: Callable[..., None], trace: dict[str, Any], **options: Any
) -> tuple[list[tuple[str, int, int]], dict[str, Any]]:
    """Run a program under simulation, on the segments of a recording.

    Args:
        gpu: the preset to simulate.
        program: is given two functions, to call where the recording begins and where it ends.
        trace: the segments that exist when it begins, and those that the driver hands out then.
        options: of ``simulate``.

    Returns:
        kind, address and size of every allocation and free, and the allocator's counters.
    """
    events, stats, mismatches = simulate_recorded(gpu, program, trace, **options)
    assert mismatches == []
    return events, stats


def simulate_recorded(
    gpu: str, program: Callable[..., None], trace: dict[str, Any], **options: Any
) -> tuple[list[tuple[str, int, int]], dict[str, Any], list[str]]:
    """As ``simulated_events``, for a program that may need other segments than were recorded.

    Returns:
        what ``simulated_events`` returns, and what the driver was asked otherwise than recorded.
    """
    driver = RecordedDriver()
    found: list[Any] = []
    with simulate(gpu, **options) as machine:
        machine.allocations.sweep_at_once()
        simulated = machine.gpus[0]
        settings = AllocatorSettings.parse(trace["settings"].get("PYTORCH_CUDA_ALLOC_CONF") or "")
        allocator = ObservedAllocator(driver, settings)

        def begin() -> None:
            use_cublas(recorded_workspaces(trace, workspace_size(simulated.model.major)))
            simulated.allocator = allocator
            for segment in trace["initial"]:
                adopt(allocator, segment)
            if trace["events"][0][0] == "segment_free":
                allocator.empty_cache()
            driver.expected.extend(
                Step(index, address, size)
                for index, (kind, address, size, *_) in enumerate(trace["events"])
                if kind in GROWTH
            )
            allocator.reset_peak_stats()

        def end() -> None:
            found.append((list(allocator.events), allocator.memory_stats()))

        program(begin, end)
    [(events, stats)] = found
    return events, stats, driver.mismatches


def recorded_workspaces(trace: dict[str, Any], size: int) -> int:
    """The number of cuBLAS workspaces when a recording begins."""
    return sum(
        allocated and requested == [size]
        for segment in trace["initial"]
        for _, _, allocated, *requested in segment["blocks"]
    )


def use_cublas(threads: int) -> None:
    """Multiply matrices in this thread, and in the backward pass' if two threads are to."""
    if threads:
        matrix = torch.ones(2, 2, device="cuda", requires_grad=True)
        product = matrix @ matrix
        if threads > 1:
            product.sum().backward()


def adopt(allocator: CachingAllocator, segment: dict[str, Any]) -> None:
    """Give an allocator a segment as it was when a recording began."""
    blocks = [
        (size, requested[0] if allocated else None)
        for _, size, allocated, *requested in segment["blocks"]
    ]
    allocator.adopt_segment(
        segment["address"], segment["stream"], blocks, is_small=segment["pool"] == "small"
    )
