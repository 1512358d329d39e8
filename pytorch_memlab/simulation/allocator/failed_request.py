"""A request that did not fit: the state of the allocator and of the GPU at that moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class FreeBlock(NamedTuple):
    """A free block that the allocator keeps.

    Args:
        size: in bytes.
        stream: the only one that it serves.
    """

    size: int
    stream: int


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """The state of an allocator and its GPU when a request failed, in bytes.

    Args:
        text: of the error.
        device: index of the GPU.
        requested: what the program asked for.
        segment: what the allocator asked the driver for.
        stream: of the request.
        capacity: of the GPU.
        free: what was free on the GPU.
        context: what the CUDA context takes, None if it is unknown.
        others: what other processes hold, None if it is unknown.
        allowed: what the memory fraction allows, None without one.
        reserved: what the allocator holds.
        blocks: in use: address -> size.
        free_blocks: what the allocator keeps for later.
    """

    text: str
    device: int
    requested: int
    segment: int
    stream: int
    capacity: int
    free: int
    context: int | None
    others: int | None
    allowed: int | None
    reserved: int
    blocks: dict[int, int]
    free_blocks: tuple[FreeBlock, ...]
