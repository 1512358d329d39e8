"""The GPU memory that one test uses while it runs, and what stays in use when it is over."""

from __future__ import annotations

import gc
import linecache
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from .._common.text.shared_paths import stored
from ..devices import Device, find_devices, simulated_machine
from ..devices.allocations import AllocatedBlock, allocations_of, drop_workspaces
from ..history.holders import PeakHolders
from ..history.recorder import Recording, live_holders
from ..profiles.changed_tests import HoldingLine, MeasuredTest
from ..records import NOT_COUNTED
from ..render.rows import source_line
from ..scopes import DevicePeaks, RunPeaks

_NOTHING = DevicePeaks(0, 0, 0)
_HOLDERS = 20


class GPUMemoryOfTest:
    """The GPU memory of a test, in bytes; before the test begins, everything is 0."""

    def __init__(self) -> None:
        self._peaks = RunPeaks()
        self._recording: Recording | None = None
        self._before: dict[str, int] = {}
        self._requests = 0
        self._uncounted: dict[str, int] = {}
        self._devices: dict[str, Device] = {}
        self._is_open = False
        self._lower_bounds: set[str] = set()

    def begin(self) -> None:
        self._devices = {device.name: device for device in find_devices() if device.name != "cpu"}
        self._before = {name: _in_use(device) for name, device in self._devices.items()}
        self._uncounted = {name: _uncounted(device) for name, device in self._devices.items()}
        self._requests = sum(map(_requests, self._devices.values()))
        self._recording = Recording(history=simulated_machine() is None)
        self._recording.begin()
        self._peaks.begin()
        self._is_open = True

    def end(self) -> None:
        """The test itself is over; what it used stays known."""
        self._is_open = False
        self._peaks.end()
        if self._recording is not None:
            self._recording.end()
        self._lower_bounds = {
            name
            for name, device in self._devices.items()
            if _uncounted(device) > self._uncounted[name]
        }

    @property
    def peak(self) -> int:
        """Most bytes in use on a GPU since the test began, those of its fixtures among them."""
        return self._highest()[1].active

    @property
    def reserved(self) -> int:
        """Most bytes that PyTorch took from that GPU."""
        return self._highest()[1].reserved

    @property
    def in_use(self) -> int:
        """Bytes in use now, on the GPU that has most of them."""
        return max(map(_in_use, self._devices.values()), default=0)

    @property
    def was_used(self) -> bool:
        """True if memory was in use, or asked for."""
        asked = sum(map(_requests, self._devices.values())) != self._requests
        return asked or self.peak > 0

    @property
    def holders(self) -> PeakHolders:
        """The holders of the memory at the peak: ``by_line()``, ``by_module()``, ``by_category()``.

        Raises:
            HistoryError: nothing was recorded.
        """
        return (self._recording or Recording()).peak_holders()

    def holders_of_peak(self) -> PeakHolders | None:
        """The holders on the GPU with the highest peak; None if they were not recorded."""
        name = self._highest()[0]
        if self._recording is None:
            return None
        return self._recording.all_peak_holders().get(name)

    def measured(self, limit: int | None, folder: Path) -> MeasuredTest:
        """The measurement as data; files are named as seen from the folder of the project."""
        name, peaks = self._highest()
        device = self._devices.get(name)
        info = None if device is None else device.info
        return MeasuredTest(
            name,
            "" if info is None else info.description,
            info is not None and info.simulated,
            peaks.active,
            peaks.reserved,
            self._before.get(name, 0),
            name in self._lower_bounds,
            limit,
            _holding_lines(self.holders_of_peak(), folder),
        )

    def __repr__(self) -> str:
        """The bytes."""
        return f"<gpu_memory: peak {self.peak:,} bytes, {self.in_use:,} in use>"

    def _highest(self) -> tuple[str, DevicePeaks]:
        """The device with the highest peak."""
        peaks = self._peaks.highest
        first = next(iter(self._devices), "cuda:0")
        return max(peaks.items(), key=lambda item: item[1].active, default=(first, _NOTHING))


def _uncounted(device: Device) -> int:
    """The number of times that a simulation did not count all memory so far."""
    approximations = device.approximations().values()
    return sum(
        approximation.calls for approximation in approximations if approximation.kind in NOT_COUNTED
    )


def _in_use(device: Device) -> int:
    stats = device.stats()
    return int(stats["active_bytes"]["all"]["current"]) if stats else 0


def _requests(device: Device) -> int:
    """The number of requests so far, with those that failed."""
    stats = device.stats()
    return int(stats["active"]["all"]["allocated"] + stats.get("num_ooms", 0)) if stats else 0


def _holding_lines(holders: PeakHolders | None, folder: Path) -> tuple[HoldingLine, ...]:
    if holders is None:
        return ()
    lines = holders.by_line()[:_HOLDERS]
    prefix = f"{folder.as_posix()}/"  # of a path in the folder of the project
    for file in {line.file for line in lines}:
        linecache.checkcache(file)
    return tuple(
        HoldingLine(
            _name_of(line.file, prefix),
            line.line or 0,
            line.function,
            source_line(line.file, line.line),
            line.size,
        )
        for line in lines
    )


def _name_of(file: str, prefix: str) -> str:
    """The path of a file in the folder of the project, or else as files keep it."""
    path = file.replace("\\", "/")
    return path.removeprefix(prefix) if path.startswith(prefix) else stored(file)


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
    """Compares the blocks in use after a test with those before it."""

    # Workspaces of kernels do not count, nor does what fixtures of a module or a session allocated
    # when they were set up.

    def __init__(self) -> None:
        self._known = {address for address, _ in _blocks()}

    def expect(self) -> None:
        """Ignore what is in use now: a fixture made it that outlives the test."""
        self._known |= {address for address, _ in _blocks()}

    def found(self) -> Leak:
        """The memory that stayed in use, on the GPU that has most of it."""
        gc.collect()
        drop_workspaces()
        new: dict[int, list[AllocatedBlock]] = {}
        for (index, address), block in _blocks():
            if (index, address) not in self._known:
                new.setdefault(index, []).append(block)
        sizes = {index: sum(block.size for block in blocks) for index, blocks in new.items()}
        if not sizes:
            return Leak(0, 0, 0, None)
        device = max(sizes, key=sizes.__getitem__)
        holders = _holders_of(device, {block.address for block in new[device]})
        return Leak(device, sizes[device], len(new[device]), holders)


def _blocks() -> list[tuple[_Address, AllocatedBlock]]:
    """The blocks in use on all GPUs."""
    blocks_in_use = []
    for index in range(torch.cuda.device_count()):
        device = torch.device("cuda", index)
        blocks = allocations_of(device) or []
        blocks_in_use += [((index, block.address), block) for block in blocks]
    return blocks_in_use


def _holders_of(device: int, addresses: set[int]) -> PeakHolders | None:
    """The lines that made some blocks of a GPU, if they were recorded."""
    live = live_holders(device)
    if live is None:
        return None
    blocks = tuple(block for block in live.peak.blocks if block.address in addresses)
    size = sum(block.size for block in blocks)
    return PeakHolders(replace(live.peak, active=size, blocks=blocks), live.stacks)
