"""The allocator's blocks in the shape of ``torch.cuda.memory_snapshot()``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .blocks import Block


def segments_of(blocks: Iterable[Block], device: int) -> list[dict[str, Any]]:
    """Return one dictionary for each segment, by address."""
    heads = [block for block in blocks if block.prev is None or not block.prev.mapped]
    return [_segment(head, device) for head in sorted(heads, key=lambda head: head.address)]


def _segment(head: Block, device: int) -> dict[str, Any]:
    blocks = []
    block: Block | None = head
    while block is not None and block.mapped:
        blocks.append(_block(block))
        block = block.next
    allocated = [one for one in blocks if one["state"] == "active_allocated"]
    active = [one for one in blocks if one["state"] != "inactive"]
    return {
        "device": device,
        "address": head.address,
        "total_size": _sum(blocks, "size"),
        "allocated_size": _sum(allocated, "size"),
        "active_size": _sum(active, "size"),
        "requested_size": _sum(active, "requested_size"),
        "stream": head.stream,
        "segment_type": "small" if head.pool.is_small else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": head.expandable_segment is not None,
        "frames": [],
        "blocks": blocks,
    }


def _block(block: Block) -> dict[str, Any]:
    if block.allocated:
        state = "active_allocated"
    else:
        state = "inactive" if block.is_free else "active_pending_free"
    return {
        "address": block.address,
        "size": block.size,
        "requested_size": block.requested_size,
        "state": state,
        "frames": [],
    }


def _sum(blocks: list[dict[str, Any]], key: str) -> int:
    return sum(block[key] for block in blocks)
