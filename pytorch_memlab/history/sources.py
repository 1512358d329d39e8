"""Sources of allocator events: simulated GPUs, and the tensors of the host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ..devices import get_device
from ..simulation.inspect import active, settings_string
from .block_categories import live_categories
from .category import Category
from .freed_blocks import FreedCategories
from .live_block import LiveBlock
from .live_blocks import LiveBlocks
from .live_log import LiveLog
from .model import Block, Segment
from .program import program

if TYPE_CHECKING:
    from .._common.call_stacks import TakenStack
    from ..devices.cpu import CpuDevice, Followed
    from ..simulation.allocator.events import Observer
    from ..simulation.inspect import Allocation, Machine, SimulatedGPU

CPU = -1
"""Number that stands for the host where the index of a GPU is expected."""


class BlockSource(Protocol):
    """The devices of one simulation, or the host."""

    live: dict[int, LiveBlocks]  # the blocks of each device, by its index

    def begin(self) -> None:
        """Follow the blocks from now on."""

    def end(self) -> None:
        """Follow them no more."""

    def watch_ops(self, is_on: bool) -> None:
        """Begin to look at every op, or end that."""

    def block_of(self, number: int) -> LiveBlock | None:
        """The block of the storage that has a number (``_cdata``)."""

    def segments(self, device: int) -> Sequence[Segment]:
        """The segments of a device with the blocks in use, as they are now."""

    def settings(self) -> dict[str, Any]:
        """The settings of the allocators, as in a snapshot."""


class SimulatedBlocks:
    """The blocks of simulated GPUs."""

    def __init__(self, machine: Machine) -> None:
        self.live: dict[int, LiveBlocks] = {}
        self._machine = machine
        self._observers: list[tuple[SimulatedGPU, Observer]] = []
        self._settings = settings_string()

    def begin(self) -> None:
        """Follow the blocks from now on."""
        machine = self._machine
        for gpu in machine.known_gpus:
            gpu.locked(gpu.allocator.follow, partial(self._observer, gpu))
        for allocation in machine.allocations.living():
            block = self.live[allocation.gpu.index].blocks.get(allocation.address)
            if block is not None and block.data is None:
                block.data = allocation
        for allocation in machine.workspaces.living():
            block = self.live[allocation.gpu.index].blocks.get(allocation.address)
            if block is not None:
                block.category = Category.WORKSPACES
        machine.data_observers = (*machine.data_observers, self._data_made)

    def end(self) -> None:
        """Follow them no more."""
        self.settings()
        machine = self._machine
        machine.data_observers = _without(machine.data_observers, self._data_made)
        while self._observers:
            gpu, observer = self._observers.pop()
            gpu.locked(gpu.allocator.stop_observing, observer)

    def watch_ops(self, is_on: bool) -> None:
        """Begin to look at every op and at replaced gradients, or end that."""
        machine, op_runs = self._machine, program.state.forward_ops.op_runs
        replaced = program.gradient_is_replaced
        machine.op_observers = _without(machine.op_observers, op_runs)
        machine.gradient_observers = _without(machine.gradient_observers, replaced)
        if is_on:
            machine.op_observers = (*machine.op_observers, op_runs)
            machine.gradient_observers = (*machine.gradient_observers, replaced)

    def block_of(self, number: int) -> LiveBlock | None:
        """The block of the storage that has a number (``_cdata``)."""
        allocation = self._machine.allocations.known.get(number)
        if allocation is None or allocation.gpu.index not in self.live:
            return None
        block = self.live[allocation.gpu.index].blocks.get(allocation.address)
        return block if block is not None and block.data is allocation else None

    def segments(self, device: int) -> Sequence[Segment]:
        """The segments of a device with the blocks in use, as they are now."""
        gpu = self._machine.known_gpus[device]
        return [_segment(one) for one in gpu.locked(gpu.allocator.segments)]

    def settings(self) -> dict[str, Any]:
        """The settings of the allocators, as in a snapshot."""
        if active.machine is self._machine:
            self._settings = torch._C._accelerator_getAllocatorSettings()
        return {"PYTORCH_CUDA_ALLOC_CONF": self._settings}

    def _data_made(self, allocation: Allocation) -> None:
        try:
            self.live[allocation.gpu.index].blocks[allocation.address].data = allocation
        except KeyError:  # of no bytes
            return

    def _observer(self, gpu: SimulatedGPU, blocks: list[tuple[int, int, int]]) -> Observer:
        allocator = gpu.allocator
        first = (LiveBlock(*block) for block in blocks)
        log = gpu.log

        def stack_at(address: int) -> TakenStack | None:
            known = log.live.get(address)
            return None if known is None else known.stack

        live = LiveBlocks(
            program.state, lambda: allocator.reserved_bytes, first, log.stacks, stack_at
        )
        self.live[gpu.index] = live
        in_use = allocator.in_use
        allocated, free_requested = live.allocated, live.free_requested
        free_completed, happened = live.free_completed, live.happened

        def observe(action: str, address: int, size: int, stream: int) -> None:
            if action == "alloc":
                allocated(address, in_use[address].size, size, stream)
            elif action == "free_requested":
                free_requested(address)
            elif action == "free_completed":
                free_completed(address, stream)
            elif action != "snapshot":
                happened(action, address, size, stream)

        self._observers.append((gpu, observe))
        return observe


class CpuBlocks:
    """The storages of the host, as they are counted where there is no GPU."""

    def __init__(self) -> None:
        device: Any = get_device("cpu")
        self._device: CpuDevice = device
        self.live: dict[int, LiveBlocks] = {}

    def begin(self) -> None:
        """Follow the blocks from now on."""
        blocks = []
        for followed in self._device.storages.living():
            blocks.append(LiveBlock(followed.number, followed.nbytes, followed.nbytes))
            blocks[-1].data = followed
        stacks = program.state.stacks
        self.live[CPU] = LiveBlocks(program.state, lambda: self.live[CPU].active, blocks, stacks)
        self._device.observers = (*self._device.observers, self._observe)

    def end(self) -> None:
        """Follow them no more."""
        self._device.observers = _without(self._device.observers, self._observe)

    def watch_ops(self, is_on: bool) -> None:
        """Begin to look at every op, or end that."""
        op_runs = program.state.forward_ops.op_runs
        self._device.op_observers = _without(self._device.op_observers, op_runs)
        if is_on:
            self._device.op_observers = (*self._device.op_observers, op_runs)

    def block_of(self, number: int) -> LiveBlock | None:
        """The block of the storage that has a number (``_cdata``)."""
        block = self.live[CPU].blocks.get(number)
        known = self._device.storages.known.get(number)
        return block if block is not None and block.data is known else None

    def segments(self, device: int) -> Sequence[Segment]:
        """The host has none: each block is its own."""
        return [
            Segment(
                block.address,
                block.size,
                False,
                (Block(block.address, block.size, block.requested, None),),
            )
            for block in self.live[device].blocks.values()
        ]

    def settings(self) -> dict[str, Any]:
        """There is no caching allocator."""
        return {}

    def _observe(self, action: str, followed: Followed) -> None:
        number, nbytes = followed
        live = self.live[CPU]
        if action == "alloc":
            live.allocated(number, nbytes, nbytes, 0).data = followed
        else:
            live.free_requested(number)
            live.free_completed(number, 0)


class FollowedSource:
    """A source, followed while at least one recording uses it."""

    def __init__(self, source: BlockSource) -> None:
        self.source = source
        self._users = 0
        self._on = 0

    def use(self) -> None:
        """One more keeps something of it."""
        self._users += 1
        if self._users == 1:
            self.source.begin()
            program.notes = (*program.notes, self._note)

    def leave(self) -> None:
        """One less keeps something of it."""
        self._users -= 1
        if not self._users:
            self.source.end()
            program.notes = _without(program.notes, self._note)

    def switch_on(self) -> None:
        """One more records it."""
        self._on += 1
        program.begin()
        self.source.watch_ops(is_on=True)

    def switch_off(self) -> None:
        """One less records it."""
        self._on -= 1
        program.end()
        if not self._on:
            self.source.watch_ops(is_on=False)

    def block_at(self, device: int, address: int) -> LiveBlock | None:
        """The block in use at an address; None if the device is not followed."""
        live = self.source.live.get(device)
        return None if live is None else live.blocks.get(address)

    def categories(self, device: int, blocks: Iterable[LiveBlock]) -> dict[LiveBlock, Category]:
        """The categories of blocks, by their ends or by what is alive now."""
        live: dict[LiveBlock, Category] | None = None
        block_of = self.source.block_of
        found = {}
        freed = FreedCategories(self.source.live[device].stacks)
        for block in blocks:
            category = block.category
            if category is Category.UNKNOWN:
                if live is None:
                    live = live_categories(lambda piece: block_of(piece.number))
                category = live.get(block) or freed.of(block)
            found[block] = category
        return found

    def descriptions(
        self, device: int, blocks: Iterable[LiveBlock]
    ) -> dict[LiveBlock, dict[str, str]]:
        """Keys of blocks that PyTorch's own snapshots lack, as far as they are known."""
        return {
            block: {
                **({"category": category.value} if category is not Category.UNKNOWN else {}),
                **({"module": block.module} if block.module else {}),
            }
            for block, category in self.categories(device, blocks).items()
        }

    def _note(self, storage: torch.UntypedStorage, category: Category) -> None:
        block = self.source.block_of(storage._cdata)
        if block is not None:
            block.category = category

    def begin_log(self, device: int) -> None:
        """Write all events of a device down from now on."""
        live = self.source.live[device]
        if live.log is None:
            stacks = live.stacks
            live.log = LiveLog(
                lambda block: number_in_program(live, block),
                stacks,
                program.state.stacks,
                self.source.segments(device),
                FreedCategories(stacks).of,
                live.events,
            )


def number_in_program(live: LiveBlocks, block: LiveBlock) -> int:
    """The number of the stack of a block's allocation among the program's stacks."""
    taken = live.stack_of(block)
    if taken is None:
        return 0
    number, stacks = live.stacks.number_of(taken), program.state.stacks
    if live.stacks is stacks:
        return number
    adopted = live.adopted.get(number)
    if adopted is None:
        adopted = live.adopted[number] = stacks.adopt(live.stacks.places_of(number))
    return adopted


def _without(all_: tuple[Any, ...], one: Callable[..., Any]) -> tuple[Any, ...]:
    return tuple(each for each in all_ if each != one)


def _segment(segment: dict[str, Any]) -> Segment:
    blocks = tuple(
        Block(block["address"], block["size"], block["requested_size"], None)
        for block in segment["blocks"]
        if block["state"] != "inactive"
    )
    return Segment(
        segment["address"],
        segment["total_size"],
        segment["is_expandable"],
        blocks,
        segment["stream"],
        segment["segment_type"] == "small",
    )
