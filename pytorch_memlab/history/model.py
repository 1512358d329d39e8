"""An allocation history as plain data: what an allocator did, and on which stacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .._common.prose_size import prose_size
from .category import Category

UNKNOWN = Category.UNKNOWN


class Frame(NamedTuple):
    """A frame of a Python stack."""

    filename: str  # of the source file
    line: int  # number of the line
    name: str  # of the function


Stack = tuple[Frame, ...]
"""Frames, innermost first; empty if nothing is known."""


class Event(NamedTuple):
    """One thing that an allocator did."""

    action: str  # as PyTorch's memory history names it, such as ``alloc`` or ``free_completed``
    address: int  # of the block or segment; for ``oom`` the bytes free on the GPU
    size: int  # bytes requested for a block; bytes of a segment or its pages
    stream: int  # that it belongs to
    time: int  # in microseconds since the epoch
    stack: int  # index of its stack in the history
    # of an allocation in the backward pass, index of the stack of the forward op; 0 if there is
    # none or it is not known
    forward: int = 0
    category: Category = UNKNOWN  # of an allocation, what the block is to the program
    # of an allocation, path of the ``nn.Module`` that runs, such as ``GPT.blocks.3.attn``; of one
    # in the backward pass that of the forward op; empty if there is none or it is not known
    module: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """A block in use."""

    address: int  # where it begins
    size: int  # its bytes
    requested: int  # bytes that the program asked for
    # index of the stack of its allocation; None for one that the history does not have
    stack: int | None
    forward: int = 0  # as an event has it
    category: Category = UNKNOWN  # as an event has it
    module: str = ""  # as an event has it


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment at one moment."""

    address: int  # where it begins
    size: int  # its bytes
    is_expandable: bool  # whether it is a range of pages of an expandable segment
    blocks: tuple[Block, ...]  # those in use
    stream: int = 0  # that it serves
    # whether it serves requests of up to 1 MiB; None if it is not known
    is_small: bool | None = None


@dataclass(frozen=True, slots=True)
class DeviceHistory:
    """The events of one GPU's allocator."""

    device: int  # index of the GPU; -1 for the host
    events: Sequence[Event]  # in order
    segments: Sequence[Segment]  # those at the end
    # those at the beginning; None if they have to follow from the rest
    initial: Sequence[Segment] | None = None
    # whether blocks are larger than what was requested, as a caching allocator's; False for the
    # storages of the host
    is_rounded: bool = True
    first_segments: dict[object, list[Segment]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Results of ``first_state``, by the settings of the allocator."""

    def __repr__(self) -> str:
        """The number of events, and the bytes reserved at the end."""
        reserved = prose_size(sum(segment.size for segment in self.segments))
        return (
            f"<{type(self).__name__} of {device_name(self.device)}: {len(self.events):,} events,"
            f" {reserved} reserved at the end>"
        )


@dataclass(frozen=True, slots=True)
class AllocationHistory:
    """The events of all allocators of a process."""

    devices: Sequence[DeviceHistory]  # of each GPU
    stacks: Sequence[Stack]  # the stacks that events and blocks name by their index
    # of the allocators, as a snapshot has them
    settings: dict[str, object] = field(default_factory=dict)
    # when steps of optimizers ended, in microseconds as events have them; None if it is not known
    steps: Sequence[int] | None = None

    def __repr__(self) -> str:
        """The number of events on each device."""
        devices = [
            f"{device_name(one.device)} ({len(one.events):,} events)" for one in self.devices
        ]
        return f"<{type(self).__name__} of {', '.join(devices) or 'no device'}>"

    def of_device(self, device: int) -> DeviceHistory:
        """The history of one device, by its index and not by its place."""
        for one in self.devices:
            if one.device == device:
                return one
        raise LookupError(f"the history has no device {device}")


def device_name(device: int) -> str:
    """The name of a device in a report.

    >>> device_name(1), device_name(-1)
    ('cuda:1', 'cpu')
    """
    return "cpu" if device < 0 else f"cuda:{device}"
