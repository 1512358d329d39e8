"""Sources of allocator events: simulated GPUs, and the tensors of the host."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch

from .._common.frames.call_stacks import call_stacks, capture
from ..devices import get_device
from ..simulation.inspect import LoggedBlock, Machine, SimulatedGPU
from .block_categories import freed_category, live_categories
from .earlier_memory import EarlierMemory
from .live_blocks import LiveBlock, LiveBlocks, LiveLog
from .model import HOST, Category, Segment, UsedBlock
from .program import program
from .snapshot import Stacks, segment_of

if TYPE_CHECKING:
    from ..devices.cpu import CpuDevice, Followed


class FollowedSource(ABC):
    """The devices of one simulation, or the host, followed while a recording uses them."""

    def __init__(self) -> None:
        self.live: dict[int, LiveBlocks] = {}  # the blocks of each device, by its index
        self._users = 0
        self._on = 0

    @abstractmethod
    def _begin(self) -> None: ...

    @abstractmethod
    def _end(self) -> None: ...

    @abstractmethod
    def _watch_ops(self, is_on: bool) -> None:
        """Begin to look at every op and at replaced gradients, or end that."""

    @abstractmethod
    def _blocks_of(self, numbers: Iterable[int]) -> Iterator[LiveBlock]:
        """The blocks of the storages that have these numbers (``_cdata``)."""

    @abstractmethod
    def segments(self, device: int) -> Sequence[Segment]:
        """The segments of a device with the blocks in use, as they are now."""

    def settings(self) -> dict[str, Any]:
        """The settings of the allocators, as in a snapshot; empty if there is no allocator."""
        return {}

    def use(self) -> None:
        """One more keeps something of it."""
        self._users += 1
        if self._users == 1:
            self._begin()
            program.notes = (*program.notes, self._note)

    def leave(self) -> None:
        self._users -= 1
        if not self._users:
            self._end()
            program.notes = _without(program.notes, self._note)

    def switch_on(self) -> None:
        """One more records it."""
        self._on += 1
        program.begin()
        self._watch_ops(is_on=True)

    def switch_off(self) -> None:
        self._on -= 1
        program.end()
        if not self._on:
            self._watch_ops(is_on=False)

    def block_at(self, device: int, address: int) -> LiveBlock | None:
        """The block in use at an address; None if the device is not followed."""
        live = self.live.get(device)
        return None if live is None else live.block_at(address)

    def categories(self, blocks: Iterable[LiveBlock]) -> dict[LiveBlock, Category]:
        """The categories of blocks, by their ends or by what is alive now."""
        live: dict[LiveBlock, Category] | None = None
        blocks_of = self._blocks_of
        categories = {}
        for block in blocks:
            category = block.category
            if category is Category.UNKNOWN:
                if live is None:
                    live = live_categories(lambda piece: next(blocks_of((piece.number,)), None))
                category = live.get(block) or freed_category(block)
            categories[block] = category
        return categories

    def descriptions(self, blocks: Iterable[LiveBlock]) -> dict[LiveBlock, dict[str, str]]:
        """Keys of blocks that PyTorch's own snapshots lack, as far as they are known."""
        return {
            block: {
                **({"category": category.value} if category is not Category.UNKNOWN else {}),
                **({"module": block.module} if block.module else {}),
            }
            for block, category in self.categories(blocks).items()
        }

    def _note(self, storages: Sequence[torch.UntypedStorage], category: Category) -> None:
        for block in self._blocks_of([storage._cdata for storage in storages]):
            block.category = category

    def begin_log(
        self,
        device: int,  # index of the GPU, or ``HOST``
        segments: Sequence[Segment],  # those before the first event of the recording
        most: int | None,  # how many events it wants at most; None for all
    ) -> None:
        """Keep the events of a device for one more recording."""
        live = self.live[device]
        if live.log is None:
            memory = EarlierMemory(device, segments)
            live.log = LiveLog(freed_category, live.events, memory, most)
        else:
            live.log.keep(most)


class SimulatedBlocks(FollowedSource):
    """The blocks of simulated GPUs."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._machine = machine

    def _begin(self) -> None:
        machine = self._machine
        machine.allocations.sweep_at_once()  # the moment of a free tells its category
        for gpu in machine.known_gpus:
            gpu.locked(self._follow, gpu)
        for allocation in machine.workspaces.living():
            block = self.live[allocation.gpu.index].block_at(allocation.address)
            if block is not None:
                block.category = Category.WORKSPACES

    def _end(self) -> None:
        self.settings()
        for index in self.live:
            log = self._machine.known_gpus[index].log
            log.follower, log.block_class = None, LoggedBlock
        self._machine.allocations.sweep_later()
        self.live.clear()

    def _watch_ops(self, is_on: bool) -> None:
        machine, op_runs = self._machine, program.state.forward_ops.op_runs
        replaced = program.gradient_is_replaced
        machine.op_observers = _without(machine.op_observers, op_runs)
        machine.gradient_observers = _without(machine.gradient_observers, replaced)
        if is_on:
            machine.op_observers = (*machine.op_observers, op_runs)
            machine.gradient_observers = (*machine.gradient_observers, replaced)
        for gpu in machine.known_gpus:
            gpu.log.capture = program.state.forward_ops.capture if is_on else capture

    def _blocks_of(self, numbers: Iterable[int]) -> Iterator[LiveBlock]:
        by_number, live = self._machine.allocations.known, self.live
        for number in numbers:
            allocation = by_number.get(number)
            if allocation is not None and allocation.gpu.index in live:
                block = live[allocation.gpu.index].in_use.get(allocation.address)
                if block is not None:
                    yield block

    def segments(self, device: int) -> Sequence[Segment]:
        gpu = self._machine.known_gpus[device]
        stacks = Stacks()
        return [segment_of(segment, stacks) for segment in gpu.locked(gpu.allocator.segments)]

    def settings(self) -> dict[str, Any]:
        return {"PYTORCH_CUDA_ALLOC_CONF": self._machine.allocator_settings.text}

    def _follow(self, gpu: SimulatedGPU) -> None:
        log = gpu.log
        call_stacks.read()
        followed: list[dict[int, LiveBlock]] = []
        for blocks in (log.live, log.waiting):
            blocks.update([(address, LiveBlock.of(block)) for address, block in blocks.items()])
            followed.append(cast("dict[int, LiveBlock]", blocks))
        in_use, waiting = followed
        live = LiveBlocks(
            *(program.state, lambda: gpu.allocator.reserved_bytes, in_use, waiting, gpu.locked),
            private=gpu.private_memory,
        )
        log.follower, log.block_class = live, LiveBlock
        self.live[gpu.index] = live


class CpuBlocks(FollowedSource):
    """The storages of the host, as they are counted where there is no GPU."""

    def __init__(self) -> None:
        device: Any = get_device("cpu")
        super().__init__()
        self._device: CpuDevice = device
        self._blocks: dict[int, LiveBlock] = {}

    def _begin(self) -> None:
        living = self._device.storages.living()
        self._blocks = blocks = {block.number: _block_of(block) for block in living}
        self.live[HOST] = LiveBlocks(program.state, lambda: self.live[HOST].active, blocks, {})
        self._device.observers = (*self._device.observers, self._observe)

    def _end(self) -> None:
        self._device.observers = _without(self._device.observers, self._observe)

    def _watch_ops(self, is_on: bool) -> None:
        op_runs = program.state.forward_ops.op_runs
        self._device.op_observers = _without(self._device.op_observers, op_runs)
        if is_on:
            self._device.op_observers = (*self._device.op_observers, op_runs)

    def _blocks_of(self, numbers: Iterable[int]) -> Iterator[LiveBlock]:
        by_number, blocks = self._device.storages.known, self._blocks
        return (blocks[number] for number in numbers if number in by_number and number in blocks)

    def segments(self, device: int) -> Sequence[Segment]:
        """The host has none: each block is its own."""
        blocks = [
            UsedBlock(block.address, block.size, block.requested, None)
            for block in self.live[device].blocks()
        ]
        return [Segment(block.address, block.size, False, (block,)) for block in blocks]

    def _observe(self, action: str, followed: Followed) -> None:
        live, state = self.live[HOST], program.state
        if action == "alloc":
            block = self._blocks[followed.number] = _block_of(followed)
            if state.is_on:
                block.raw = state.forward_ops.capture() if self._on else capture()
                call_stacks.add(block)
            live.allocated(block)
        elif followed.number in self._blocks:
            block = self._blocks.pop(followed.number)
            live.freed(block)
            call_stacks.drop(block)


def _block_of(followed: Followed) -> LiveBlock:
    number, nbytes = followed
    block = LiveBlock(number, nbytes, nbytes)
    block.is_data = True
    return block


def _without(all_: tuple[Any, ...], excluded: Callable[..., Any]) -> tuple[Any, ...]:
    return tuple(function for function in all_ if function != excluded)
