"""What holds a peak as JSON, and back."""

from __future__ import annotations

from typing import Any, Final

from ..history.category import category_named
from ..history.holders import PeakHolders
from ..history.model import Block, Frame, Stack
from ..history.peak import Peak
from .checked_json import Checked, DamagedError

_WIDTH: Final = 7
"""Fields of a block."""


def holders_data(holders: PeakHolders) -> dict[str, Any]:
    """The peak of a device, its blocks, and their stacks; files and names of frames stand once.

    Args:
        holders: of the peak.
    """
    peak = holders.peak
    texts: dict[str, int] = {}

    def text(one: str) -> int:
        return texts.setdefault(one, len(texts))

    stacks = [
        [[text(frame.filename), frame.line, text(frame.name)] for frame in stack]
        for stack in holders.stacks
    ]
    blocks = [
        [
            block.address,
            block.size,
            block.requested,
            block.stack,
            block.forward,
            text(str(block.category)),
            text(block.module),
        ]
        for block in peak.blocks
    ]
    return {
        "device": peak.device,
        "active": peak.active,
        "reserved": peak.reserved,
        "event": peak.event,
        "events": peak.events,
        "texts": list(texts),
        "stacks": stacks,
        "blocks": blocks,
    }


def read_holders(data: Checked) -> PeakHolders:
    """What ``holders_data`` made the object of.

    Args:
        data: the object.

    Raises:
        DamagedError: a field is missing or is not what it has to be.
    """
    texts = data.texts("texts")
    stacks = [_stack(data, frames, texts) for frames in data.lists("stacks")]
    blocks = tuple(
        _block(data, fields, texts, len(stacks)) for fields in data.rows("blocks", _WIDTH)
    )
    active = data.count("active")
    if active != sum(block.size for block in blocks):
        raise DamagedError("the blocks of a peak do not add up to it")
    peak = Peak(
        data.number("device"),
        active,
        data.count("reserved"),
        data.number("event"),
        data.count("events"),
        blocks,
    )
    return PeakHolders(peak, stacks)


def _stack(data: Checked, frames: list[Any], texts: tuple[str, ...]) -> Stack:
    found = []
    for frame in frames:
        if not isinstance(frame, list) or len(frame) != 3:
            raise DamagedError("a frame of a stack has other than three fields")
        file, line, name = frame
        found.append(
            Frame(
                texts[data.checked_index(file, len(texts), "stacks")],
                data.checked_count(line, "stacks"),
                texts[data.checked_index(name, len(texts), "stacks")],
            )
        )
    return tuple(found)


def _block(data: Checked, fields: list[Any], texts: tuple[str, ...], stacks: int) -> Block:
    address, size, requested, stack, forward, category, module = fields
    return Block(
        # An address is of 64 bits without a sign.
        data.checked_index(address, 2**64, "blocks"),
        data.checked_count(size, "blocks"),
        data.checked_count(requested, "blocks"),
        None if stack is None else data.checked_index(stack, stacks, "blocks"),
        data.checked_index(forward, max(stacks, 1), "blocks"),
        category_named(texts[data.checked_index(category, len(texts), "blocks")]),
        texts[data.checked_index(module, len(texts), "blocks")],
    )
