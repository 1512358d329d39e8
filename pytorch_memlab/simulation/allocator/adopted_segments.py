"""Segments that exist before a recording begins, given to the allocator that replays it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .caching_allocator import CachingAllocator

Mapped = tuple[int, int, int]
"""Address, size in bytes and stream of pages that get memory."""


class AdoptedSegment(NamedTuple):
    """A segment, or a range of pages of an expandable one."""

    address: int  # where it begins
    stream: int  # that it serves
    is_small: bool  # whether it belongs to the small pool
    is_expandable: bool  # whether it is a range of pages of an expandable segment
    # from the first to the last, size and requested size in bytes, None for a free one
    blocks: list[tuple[int, int | None]]


def adopt_segments(
    allocator: CachingAllocator, segments: Iterable[AdoptedSegment], mapped: Iterable[Mapped] = ()
) -> list[int]:
    """Give an allocator the segments that exist before a recording begins.

    The ranges of one stream and pool are taken for one expandable segment. A recording does not
    tell where its addresses begin: at the lowest that has memory before or during the recording.
    """
    expandable: dict[tuple[int, bool], list[AdoptedSegment]] = {}
    for one in segments:
        if one.is_expandable:
            expandable.setdefault((one.stream, one.is_small), []).append(one)
        else:
            allocator.adopt_segment(one.address, one.stream, one.blocks, is_small=one.is_small)
    later = list(mapped) if expandable else []
    begins = []
    for (stream, is_small), ranges in expandable.items():
        page_size = allocator.settings.large_segment_size
        lowest = [
            address
            for address, size, its in later
            if its == stream and (size % page_size != 0) == is_small
        ]
        begin = min(ranges[0].address, *lowest) if lowest else ranges[0].address
        allocator.adopt_expandable_segment(
            begin, stream, [(one.address, one.blocks) for one in ranges], is_small=is_small
        )
        begins.append(begin)
    return begins
