"""Pinned host memory in few blocks, and the memory that the host has left for this process."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from .._common.text.prose_size import prose_size
from ..errors import MemlabError

LARGEST = 2**30
"""Bytes of a block, unless one storage needs a larger one."""

ALIGNMENT = 512
"""Bytes at which a storage may begin, as PyTorch's allocator on the GPU rounds."""


_GROUPS = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of storages in blocks."""

    # PyTorch's allocator of pinned memory rounds up to powers of two (CachingHostAllocator.h).
    blocks: list[int]  # bytes of each
    places: list[tuple[int, int]]  # of each storage: index of its block, and byte in there


def lay_out(sizes: Sequence[int]) -> Layout:
    """Pack storages into blocks, the large ones first.

    >>> lay_out([700, 2**20, 100])
    Layout(blocks=[1048576, 1024, 512], places=[(1, 0), (0, 0), (2, 0)])
    """
    rounded = [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]
    waiting = sorted(range(len(sizes)), key=rounded.__getitem__, reverse=True)
    blocks: list[int] = []
    places = [(0, 0)] * len(sizes)
    while waiting:
        rest = sum(rounded[index] for index in waiting)
        block = max(_power_above(rounded[waiting[0]]), min(LARGEST, _power_above(rest // 2 + 1)))
        begin = 0
        later = []
        for index in waiting:
            if begin + rounded[index] <= block:
                places[index] = (len(blocks), begin)
                begin += rounded[index]
            else:
                later.append(index)
        blocks.append(block)
        waiting = later
    return Layout(blocks, places)


def host_storages(sizes: Sequence[int]) -> list[torch.UntypedStorage]:
    """New storages in pinned host memory, which cannot be resized; ``MemlabError`` without room."""
    layout = lay_out(sizes)
    _require(sum(layout.blocks), sum(sizes))
    try:
        blocks = [_pinned(size) for size in layout.blocks]
    except (RuntimeError, MemoryError):
        blocks = _pageable(layout.blocks, sum(sizes))
    return [
        blocks[block][begin : begin + size]
        for size, (block, begin) in zip(sizes, layout.places, strict=True)
    ]


def _power_above(size: int) -> int:
    """The least power of two that is not less than a size."""
    return 1 << max(size - 1, 0).bit_length()


def _require(needed: int, lent: int) -> None:
    if needed <= free_host_memory():
        return
    empty = getattr(torch._C, "_host_emptyCache", None)
    if empty is not None and torch.cuda.is_initialized():
        empty()
    free = free_host_memory()
    if needed > free:
        raise MemlabError(
            f"no room for {prose_size(lent)} in host memory: with the rounding of pinned memory "
            f"{prose_size(needed)} are needed, {prose_size(free)} are free; nothing was moved"
        )


def _pinned(size: int) -> torch.UntypedStorage:
    block = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)
    return block.untyped_storage()


def _unpinned(size: int) -> torch.UntypedStorage:
    return torch.UntypedStorage(size, device="cpu")


def _pageable(sizes: list[int], lent: int) -> list[torch.UntypedStorage]:
    try:
        blocks = [_unpinned(size) for size in sizes]
    except (RuntimeError, MemoryError) as error:
        raise MemlabError(
            f"no room for {prose_size(lent)} in host memory; nothing was moved"
        ) from error
    warnings.warn(
        "the system gives no pinned memory (see `ulimit -l`): copies are slower", stacklevel=2
    )
    return blocks


# What the host has left


def free_host_memory() -> int:
    """Bytes that this process can still take, within the limits of its control groups."""
    import psutil

    available: int = psutil.virtual_memory().available
    return max(0, min([available, *_left_in_groups(_MEMBERSHIP, _GROUPS)]))


def _left_in_groups(membership: Path, root: Path) -> list[int]:
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return []
    left: list[int] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            names = ("memory.max", "memory.current", "inactive_file")
            left += _left_upwards(root, path, names)
        elif "memory" in controllers.split(","):
            # Version 1; the total_ figures include the groups below.
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            left += _left_upwards(root / "memory", path, names)
    return left


def _left_upwards(root: Path, path: str, names: tuple[str, str, str]) -> list[int]:
    """The bytes that the limits of a group, and of each one above it, leave."""
    group = root / path.strip("/")
    groups = [root]
    if group.is_dir():  # from inside a container its own group is the root, whatever it is called
        above = [parent for parent in group.parents if parent.is_relative_to(root)]
        groups = list(dict.fromkeys([group, *above]))
    return [left for group in groups if (left := _left_in(group, *names)) is not None]


def _left_in(group: Path, limit: str, usage: str, cache: str) -> int | None:
    try:
        most = int((group / limit).read_text())
        used = int((group / usage).read_text())
        statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no limit: "max", or no file at all
        return None
    return most - used + int(statistics.get(cache, 0))
