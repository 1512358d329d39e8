"""A block in use, and the pass that made it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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


class LiveBlock:
    """A block from its allocation until no recording needs it."""

    # No slots: most blocks live and die with the values of the class, and cost half the time.
    # of the allocation; None if it was not seen, or while ``LiveBlocks.stack_of`` has it
    stack: TakenStack | None = None
    forward: TakenStack | None = None
    module = ""
    category = Category.UNKNOWN
    made_in = NOT_SEEN
    data: object = None  # identifies its storage; None for memory that a kernel allocated
    call = 0
    end: TakenStack | None = None
    number = -1

    def __init__(self, address: int, size: int, requested: int) -> None:
        self.address = address
        self.size = size
        self.requested = requested
