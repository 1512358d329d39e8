"""Memory that stays in use when a test and its fixtures are over."""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace

import torch

from ..devices.allocations import Allocation, allocations_of
from ..devices.driver_memory import drop_workspaces
from ..history.holders import PeakHolders
from ..history.recorder import live_holders

_Address = tuple[int, int]
"""Index of a GPU, and the address of a block."""


@dataclass(frozen=True, slots=True)
class Leak:
    """Blocks that stayed in use."""

    device: int  # index of the GPU that has most of them
    size: int
    blocks: int
    holders: PeakHolders | None  # the lines that made them; None if they were not recorded


class LeakCheck:
    """Compares the blocks in use after a test with those before it.

    Workspaces of kernels do not count, nor does what fixtures of a module or a session allocated
    when they were set up.
    """

    def __init__(self) -> None:
        self._known = {address for address, _ in _blocks()}

    def expect(self) -> None:
        """Ignore what is in use now: a fixture made it that outlives the test."""
        self._known |= {address for address, _ in _blocks()}

    def found(self) -> Leak:
        """The memory that stayed in use, on the GPU that has most of it."""
        gc.collect()
        drop_workspaces()
        new = [
            (index, one)
            for (index, address), one in _blocks()
            if (index, address) not in self._known
        ]
        sizes: dict[int, list[Allocation]] = {}
        for index, one in new:
            sizes.setdefault(index, []).append(one)
        if not sizes:
            return Leak(0, 0, 0, None)
        device = max(sizes, key=lambda index: sum(one.size for one in sizes[index]))
        blocks = sizes[device]
        return Leak(
            device,
            sum(one.size for one in blocks),
            len(blocks),
            _holders_of(device, {one.address for one in blocks}),
        )


def _blocks() -> list[tuple[_Address, Allocation]]:
    """The blocks in use on all GPUs."""
    found = []
    for index in range(torch.cuda.device_count()):
        device = torch.device("cuda", index)
        blocks = allocations_of(device) or []
        found += [((index, one.address), one) for one in blocks]
    return found


def _holders_of(device: int, addresses: set[int]) -> PeakHolders | None:
    """The lines that made some blocks of a simulated GPU."""
    live = live_holders(device)
    if live is None:
        return None
    blocks = tuple(one for one in live.peak.blocks if one.address in addresses)
    size = sum(one.size for one in blocks)
    return PeakHolders(replace(live.peak, active=size, blocks=blocks), live.stacks)
