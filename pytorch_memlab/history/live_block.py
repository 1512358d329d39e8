"""A block in use, and the pass that made it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..simulation.inspect import LoggedBlock
from .category import Category

if TYPE_CHECKING:
    from .._common.call_stacks import TakenStack

NOT_SEEN: Final = 0
FORWARD: Final = 1
FORWARD_WITH_NODE: Final = 2
FORWARD_WITHOUT_GRAD: Final = 3
BACKWARD: Final = 4
"""The pass that made a block: with gradients on, by an op that made a node of autograd or by
another; with gradients off; in a backward pass; or it was not seen."""


class LiveBlock(LoggedBlock):
    """A block from its allocation until no recording needs it; its stack may not be known."""

    # No slots: most blocks live and die with the values of the class, and cost half the time.
    forward: TakenStack | None = None
    module = ""
    category = Category.UNKNOWN
    made_in = NOT_SEEN
    call = 0
    end: TakenStack | None = None
    event = -1  # number of its allocation among the events of the device

    @classmethod
    def of(cls, block: LoggedBlock) -> LiveBlock:
        """A block that was allocated before it is followed."""
        made = cls(block.address, block.size, block.requested, block.stream, block.order, block.raw)
        made.is_data, made.number = block.is_data, block.number
        return made
