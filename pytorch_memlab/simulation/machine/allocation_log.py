"""The requests to a simulated GPU so far, and the stacks of those in use.

Note [The log of requests]
An out-of-memory report says whether another setting of the allocator would have helped. It finds
out by making the same requests again, so they are kept: as plain integers, 24 bytes for an
allocation and 8 for a free. When there are too many, those of blocks that are free again are
dropped. What is left grows with the blocks in use, and ``is_whole`` says that some are missing.
"""

from __future__ import annotations

import sys
from array import array
from types import CodeType, FrameType
from typing import Final, NamedTuple

from ..._common.call_stacks import SKIPPED, CallStacks, TakenStack

CodeStack = tuple[tuple[CodeType, int], ...]
"""Code and line of each frame, innermost first."""

_tuple_as = tuple.__new__  # what making a named tuple ends in, without a call of Python
_DEEPEST: Final = 64
_LONGEST: Final = 150_000
"""Numbers in the log before it is shortened: 1.2 MB, replayed in less than half a second."""


class LiveBlock(NamedTuple):
    """An allocation that the program holds.

    Args:
        size: bytes that were asked for.
        stream: that it was asked for on.
        order: how many allocations came before it.
        stack: that asked for it.
    """

    size: int
    stream: int
    order: int
    stack: TakenStack


class AllocationLog:
    """Requests to one allocator, in order.

    Attributes:
        requests: for an allocation its address, size and stream; for a free the address, negative.
        live: what is in use, by address, the oldest first.
        allocations: how many there were.
        is_whole: whether nothing is missing.
        stacks: keeps the frames of the stacks.
    """

    def __init__(self) -> None:
        self.requests = array("q")
        self.live: dict[int, LiveBlock] = {}
        self.allocations = 0
        self.is_whole = True
        self._most = _LONGEST
        self.stacks = CallStacks()

    def allocated(self, address: int, size: int, stream: int) -> None:
        """An allocation was made."""
        order = self.allocations
        self.live[address] = _tuple_as(LiveBlock, (size, stream, order, self.stacks.take()))
        self.allocations = order + 1
        self.requests.extend((address, size, stream))
        if len(self.requests) > self._most:
            self._shorten()

    def freed(self, address: int) -> None:
        """An allocation was given back."""
        block = self.live.pop(address, None)
        if block is not None:
            self.stacks.drop(block.stack)
        self.requests.append(-address)

    def _shorten(self) -> None:
        """Drop the requests of blocks that are free again."""
        self.requests = array("q")
        for address, block in self.live.items():
            self.requests.extend((address, block.size, block.stream))
        self._most = max(_LONGEST, 2 * len(self.requests))
        self.is_whole = False


def code_stack() -> CodeStack:
    """The frames of the program and of its libraries that run now, without the simulation's."""
    found: list[tuple[CodeType, int]] = []
    called_by_mode = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(found) < _DEEPEST:
        code = frame.f_code
        if code.co_filename.startswith(SKIPPED):
            called_by_mode = found[-1][0] if found else None
        elif code is not called_by_mode:
            # A function of torch calls the function mode, which calls it again: one frame.
            found.append((code, frame.f_lineno))
            called_by_mode = None
        frame = frame.f_back
    return tuple(found)
