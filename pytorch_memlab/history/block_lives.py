"""Single blocks of a history: when each was allocated and freed, and on which stack."""

from __future__ import annotations

from dataclasses import dataclass

from .model import AllocationHistory, Category, DeviceHistory
from .peak import counters_of, first_state, settings_of


@dataclass(frozen=True, slots=True)
class BlockLife:
    """A block from its allocation to its end, in moments: moment 0 is before the first event."""

    size: int  # its bytes
    born: int  # the first moment at which it is in use
    died: int | None  # the first moment at which it is not; None if it is in use at the end
    stack: int | None  # index of the stack of its allocation; None if that is not known
    forward: int  # index of the stack of its forward op, as an event has it
    category: Category
    module: str  # path of the ``nn.Module`` that ran; empty if it is not known


@dataclass(frozen=True, slots=True)
class BlockLives:
    """The blocks of a GPU that hold most memory for most of the time."""

    blocks: tuple[BlockLife, ...]  # in the order of their allocations
    left_out: int  # how many smaller or shorter ones there are


def block_lives(history: AllocationHistory, device: int, most: int) -> BlockLives:
    """The blocks of a GPU that hold most, by bytes times events, at most some number of them."""
    device_history = history.of_device(device)
    settings, log = settings_of(history.settings), device_history.events
    active, _ = counters_of(device_history, settings)
    first = list(first_state(device_history, settings).blocks.values())
    deaths = _deaths(
        device_history, {block.address: place - len(first) for place, block in enumerate(first)}
    )
    # Bytes and first moment; the blocks before the first event have negative numbers.
    spans = {place - len(first): (block.size, 0) for place, block in enumerate(first)}
    for index in log.indexes("alloc"):
        spans[index] = (active[index + 1] - active[index], index + 1)

    def held(number: int) -> int:
        size, born = spans[number]
        return size * (deaths.get(number, len(log) + 1) - born)

    kept = sorted(sorted(spans, key=held, reverse=True)[:most])
    blocks = []
    for number in kept:
        block = first[number] if number < 0 else log[number]
        blocks.append(
            BlockLife(
                *spans[number],
                deaths.get(number),
                block.stack,
                block.forward,
                block.category,
                block.module,
            )
        )
    return BlockLives(tuple(blocks), len(spans) - len(kept))


def _deaths(device_history: DeviceHistory, in_use: dict[int, int]) -> dict[int, int]:
    """The moments at which blocks are freed, by the numbers of the blocks."""
    deaths: dict[int, int] = {}
    for index, (action, address, *_) in enumerate(device_history.events.changes()):
        if action == "alloc":
            in_use[address] = index
        elif action == "free_completed" and address in in_use:
            deaths[in_use.pop(address)] = index + 1
    return deaths
