"""An allocation history as plain data: what an allocator did, and on which stacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .._common.prose_size import prose_size
from .category import Category

UNKNOWN = Category.UNKNOWN


class Frame(NamedTuple):
    """A frame of a Python stack.

    Args:
        filename: of the source file.
        line: number of the line.
        name: of the function.
    """

    filename: str
    line: int
    name: str


Stack = tuple[Frame, ...]
"""Frames, innermost first; empty if nothing is known."""


class Event(NamedTuple):
    """One thing that an allocator did.

    Args:
        action: as PyTorch's memory history names it, such as ``alloc`` or ``free_completed``.
        address: of the block or segment; for ``oom`` the bytes free on the GPU.
        size: bytes requested for a block; bytes of a segment or its pages.
        stream: that it belongs to.
        time: in microseconds since the epoch.
        stack: index of its stack in the history.
        forward: of an allocation in the backward pass, index of the stack of the forward op;
            0 if there is none or it is not known.
        category: of an allocation, what the block is to the program.
        module: of an allocation, path of the ``nn.Module`` that runs, such as
            ``GPT.blocks.3.attn``; of one in the backward pass that of the forward op; empty if
            there is none or it is not known.
    """

    action: str
    address: int
    size: int
    stream: int
    time: int
    stack: int
    forward: int = 0
    category: Category = UNKNOWN
    module: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """A block in use.

    Args:
        address: where it begins.
        size: its bytes.
        requested: bytes that the program asked for.
        stack: index of the stack of its allocation; None for one that the history does not have.
        forward: as an event has it.
        category: as an event has it.
        module: as an event has it.
    """

    address: int
    size: int
    requested: int
    stack: int | None
    forward: int = 0
    category: Category = UNKNOWN
    module: str = ""


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment at one moment.

    Args:
        address: where it begins.
        size: its bytes.
        is_expandable: whether it is a range of pages of an expandable segment.
        blocks: those in use.
        stream: that it serves.
        is_small: whether it serves requests of up to 1 MiB; None if it is not known.
    """

    address: int
    size: int
    is_expandable: bool
    blocks: tuple[Block, ...]
    stream: int = 0
    is_small: bool | None = None


@dataclass(frozen=True, slots=True)
class DeviceHistory:
    """The events of one GPU's allocator.

    Args:
        device: index of the GPU; -1 for the host.
        events: in order.
        segments: those at the end.
        initial: those at the beginning; None if they have to follow from the rest.
        is_rounded: whether blocks are larger than what was requested, as a caching allocator's;
            False for the storages of the host.
    """

    device: int
    events: Sequence[Event]
    segments: Sequence[Segment]
    initial: Sequence[Segment] | None = None
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
    """The events of all allocators of a process.

    Args:
        devices: of each GPU.
        stacks: the stacks that events and blocks name by their index.
        settings: of the allocators, as a snapshot has them.
    """

    devices: Sequence[DeviceHistory]
    stacks: Sequence[Stack]
    settings: dict[str, object] = field(default_factory=dict)

    def __repr__(self) -> str:
        """The number of events on each device."""
        devices = [
            f"{device_name(one.device)} ({len(one.events):,} events)" for one in self.devices
        ]
        return f"<{type(self).__name__} of {', '.join(devices) or 'no device'}>"

    def of_device(self, device: int) -> DeviceHistory:
        """The history of one device.

        Args:
            device: index of the GPU, -1 for the host. A history may leave out others before it.

        Raises:
            LookupError: the history has no such device.
        """
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
