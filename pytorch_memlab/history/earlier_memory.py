"""The memory of a device before the first event of a log that drops its oldest events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

from ..simulation.allocator.events import GROWTH, RELEASES
from .model import HOST, Category, EventLog, PoolId, Segment, UsedBlock
from .peak import SegmentMap

_IN_A_REQUEST: Final = frozenset((*GROWTH, *RELEASES))
"""What an allocator does before the event of the block that it does it for."""

_CATEGORIES: Final = tuple(Category)


class EarlierMemory:
    """The segments and the blocks in use, which follow the events that are dropped."""

    # The stacks of its blocks are numbers of ``call_stacks``, or None.

    def __init__(self, device: int, segments: Iterable[Segment]) -> None:
        segments = list(segments)
        # On the host each block is its own segment, which no event tells of.
        self._segments = SegmentMap(() if device == HOST else segments)
        self._blocks = {block.address: block for segment in segments for block in segment.blocks}

    def follow(
        self,
        log: EventLog,
        nbytes: Sequence[int],  # of each event, the bytes of the block; ``log`` has those requested
        count: int,
        pools: Mapping[int, PoolId],  # the private pools of events, by the event's index
    ) -> None:
        """Follow the first ``count`` events of a log that begins at this moment."""
        made: dict[int, int] = {}
        blocks, segments = self._blocks, self._segments
        for index, (action, address, size, stream) in enumerate(islice(log.changes(), count)):
            if action == "alloc":
                made[address] = index
                segments.serves(address, size)
            elif action == "free_completed":
                if made.pop(address, None) is None:
                    blocks.pop(address, None)
            elif action in GROWTH:
                is_expandable = action == "segment_map"
                segments.add(address, size, stream, is_expandable, pools.get(index))
            elif action in RELEASES:
                segments.remove(address, size)
        for address, index in made.items():
            blocks[address] = UsedBlock(
                address,
                nbytes[index],
                log.sizes[index],
                log.stacks[index],
                log.forwards[index],
                _CATEGORIES[log.categories[index]],
                log.module_names[log.modules[index]],
            )

    def set_category(self, address: int, category: Category) -> None:
        block = self._blocks.get(address)
        if block is not None:
            self._blocks[address] = replace(block, category=category)

    def segments(self, number_of: Callable[[int], int]) -> list[Segment]:
        """The segments with their blocks, with other numbers for stacks."""
        inside: dict[int, list[UsedBlock]] = {segment.address: [] for segment in self._segments}
        alone = []
        for address in sorted(self._blocks):
            block = self._blocks[address]
            stack = None if block.stack is None else number_of(block.stack)
            block = replace(block, stack=stack, forward=number_of(block.forward))
            segment = self._segments.at(address)
            if segment is None:
                alone.append(Segment(address, block.size, False, (block,)))
            else:
                inside[segment.address].append(block)
        segments = [
            replace(segment, blocks=tuple(inside[segment.address])) for segment in self._segments
        ]
        return segments + alone


def end_of_request(log: EventLog, index: int) -> int:
    """The first index from one on before which no request is in progress."""
    names, actions = log.action_names, log.actions
    while 0 < index < len(log) and names[actions[index - 1]] in _IN_A_REQUEST:
        index += 1
    return index
