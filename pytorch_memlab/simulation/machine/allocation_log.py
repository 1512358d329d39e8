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
from collections.abc import Callable, Container
from types import CodeType, FrameType
from typing import Any, Final, Protocol

from ..._common.frames.call_stacks import SKIPPED, TakenStack, call_stacks, capture
from ..allocator.blocks import PoolId

CodeStack = tuple[tuple[CodeType, int], ...]  # code and line of each frame, innermost first

_DEEPEST: Final = 64
_LONGEST: Final = 150_000
"""Numbers in the log before it is shortened: 1.2 MB, replayed in less than half a second."""


class LoggedBlock(TakenStack):
    """An allocation that the program holds, and the stack that asked for it."""

    is_data = False  # it holds data of the program, not a kernel's

    def __init__(
        self, address: int, size: int, requested: int, stream: int = 0, raw: Any = None
    ) -> None:
        self.address = address  # of the block
        self.size = size  # of the block in bytes
        self.requested = requested  # bytes that were asked for
        self.stream = stream  # that it was asked for on
        self.raw = raw  # the stack


class BlockFollower(Protocol):
    """Follows the blocks of a log."""

    def allocated(self, block: Any) -> None:
        """A block was allocated by this thread."""

    def free_requested(self, block: Any) -> None:
        """The program gives a block back in this thread, and other streams still use it."""

    def freed(self, block: Any) -> None:
        """The program gives a block back in this thread, and it is free again."""

    def completed(self, block: Any) -> None:
        """A block that other streams still used is free again."""

    def happened(
        self, action: str, address: int, size: int, stream: int, pool_id: PoolId | None
    ) -> None:
        """Another event: of a segment, or out of memory."""

    def settle(self) -> None:
        """Count the blocks again, after an error in one of these."""


class AllocationLog:
    """Requests to one allocator, in order: its ``BlockLog``."""

    def __init__(self) -> None:
        # for an allocation its address, size and stream; for a free the address, negative
        self.requests = array("q")
        self.live: dict[int, LoggedBlock] = {}  # what is in use, by address, the oldest first
        # what the program gave back and other streams still use, by address
        self.waiting: dict[int, LoggedBlock] = {}
        self.next_is_data = False  # whether the next allocation holds data of the program
        self.is_whole = True  # whether nothing is missing
        self._most = _LONGEST
        self.capture: Callable[[], Any] = capture  # takes the stack of an allocation
        self.follower: BlockFollower | None = None  # is told of every block; None without one
        self.block_class = LoggedBlock  # of the blocks that are allocated from now on

    def allocated(self, address: int, size: int, requested: int, stream: int) -> None:
        """An allocation was made."""
        block = self.block_class(address, size, requested, stream, self.capture())
        call_stacks.add(block)
        if self.next_is_data:
            block.is_data = True
        self.live[address] = block
        try:
            self.requests.extend((address, requested, stream))
            if len(self.requests) > self._most:
                self._shorten()
            if self.follower is not None:
                self.follower.allocated(block)
        except BaseException:
            del self.live[address]
            self.is_whole, self._most = False, 0  # the next one writes all requests again
            raise

    def freed(self, address: int, *, waits: bool) -> None:
        """An allocation was given back."""
        block = self.live.get(address)
        if block is None:  # its allocation failed before it was written down
            return
        if waits:
            self.waiting[address] = block
        self.requests.append(-address)
        del self.live[address]
        if self.follower is not None:
            if waits:
                self.follower.free_requested(block)
            else:
                self.follower.freed(block)
        call_stacks.drop(block)

    def completed(self, address: int) -> None:
        """An allocation that waited is free."""
        block = self.waiting.pop(address, None)
        if block is not None and self.follower is not None:
            self.follower.completed(block)

    def happened(
        self, action: str, address: int, size: int, stream: int, pool_id: PoolId | None
    ) -> None:
        """Another event: of a segment, or out of memory."""
        if self.follower is not None:
            self.follower.happened(action, address, size, stream, pool_id)

    def settle(self, in_use: Container[int], waiting: Container[int]) -> None:
        """Give up blocks that are not at these addresses: an error kept their events away."""
        for address in [address for address in self.live if address not in in_use]:
            self.freed(address, waits=address in waiting)
        for address in [address for address in self.waiting if address not in waiting]:
            self.completed(address)
        if self.follower is not None:
            self.follower.settle()

    def _shorten(self) -> None:
        """Drop the requests of blocks that are free again."""
        requests = array("q")
        for address, block in self.live.items():
            requests.extend((address, block.requested, block.stream))
        self._most = max(_LONGEST, 2 * len(requests))
        self.is_whole = False
        self.requests = requests


def code_stack() -> CodeStack:
    """The frames of the program and of its libraries that run now, without the simulation's."""
    stack: list[tuple[CodeType, int]] = []
    called_by_mode = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(stack) < _DEEPEST:
        code = frame.f_code
        if code.co_filename.startswith(SKIPPED):
            called_by_mode = stack[-1][0] if stack else None
        elif code is not called_by_mode:
            # A function of torch calls the function mode, which calls it again: one frame.
            stack.append((code, frame.f_lineno))
            called_by_mode = None
        frame = frame.f_back
    return tuple(stack)
