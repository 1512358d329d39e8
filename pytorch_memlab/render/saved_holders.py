"""The holders of a peak as JSON, and back."""

from __future__ import annotations

from typing import Any, Final

from ..history.category import category_named
from ..history.holders import PeakHolders
from ..history.model import Block, Frame, Stack
from ..history.peak import Peak
from .checked_json import Checked, DamagedError

_WIDTH: Final = 7
"""Fields of a block."""


class Texts:
    """Texts that stand once, and are named by their index."""

    def __init__(self) -> None:
        self._indexes: dict[str, int] = {}

    def index(self, text: str) -> int:
        """The index of a text."""
        return self._indexes.setdefault(text, len(self._indexes))

    def all(self) -> list[str]:
        """All texts in order."""
        return list(self._indexes)


def holders_data(holders: PeakHolders) -> dict[str, Any]:
    """The peak of a device, its blocks, and their stacks."""
    peak = holders.peak
    texts = Texts()
    return {
        "device": peak.device,
        "active": peak.active,
        "reserved": peak.reserved,
        "event": peak.event,
        "events": peak.events,
        "stacks": [stack_data(stack, texts) for stack in holders.stacks],
        "blocks": [block_data(block, texts) for block in peak.blocks],
        "texts": texts.all(),
    }


def read_holders(data: Checked, run: str = "") -> PeakHolders:
    """The inverse of ``holders_data``."""
    texts = data.texts("texts")
    stacks = [read_stack(data, frames, texts) for frames in data.lists("stacks")]
    blocks = tuple(read_block(data, fields, texts, len(stacks)) for fields in data.lists("blocks"))
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
        run=run,
    )
    return PeakHolders(peak, stacks)


def stack_data(stack: Stack, texts: Texts) -> list[list[int]]:
    """The frames of a stack."""
    return [[texts.index(one.filename), one.line, texts.index(one.name)] for one in stack]


def read_stack(data: Checked, frames: list[Any], texts: tuple[str, ...]) -> Stack:
    """The inverse of ``stack_data``."""
    found = []
    for frame in frames:
        if not isinstance(frame, list) or len(frame) != 3:
            raise DamagedError("a frame of a stack has other than three fields")
        file, line, name = frame
        found.append(
            Frame(
                texts[data.index("stacks", len(texts), file)],
                data.count("stacks", line),
                texts[data.index("stacks", len(texts), name)],
            )
        )
    return tuple(found)


def block_data(block: Block, texts: Texts) -> list[int | None]:
    """The fields of a block."""
    return [
        block.address,
        block.size,
        block.requested,
        block.stack,
        block.forward,
        texts.index(str(block.category)),
        texts.index(block.module),
    ]


def read_block(data: Checked, fields: object, texts: tuple[str, ...], stacks: int) -> Block:
    """The inverse of ``block_data``."""
    if not isinstance(fields, list) or len(fields) != _WIDTH:
        raise DamagedError(f"a block has other than {_WIDTH} fields")
    address, size, requested, stack, forward, category, module = fields
    return Block(
        # An address is of 64 bits without a sign.
        data.index("blocks", 2**64, address),
        data.count("blocks", size),
        data.count("blocks", requested),
        None if stack is None else data.index("blocks", stacks, stack),
        data.index("blocks", max(stacks, 1), forward),
        category_named(texts[data.index("blocks", len(texts), category)]),
        texts[data.index("blocks", len(texts), module)],
    )
