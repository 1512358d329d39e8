"""The share of the reserved bytes that is in use at their peak."""

from __future__ import annotations

from .caching_allocator import CachingAllocator


class ReservedPeak:
    """The highest reserved bytes of an allocator, and how many of them were not in use then.

    Attributes:
        unused: bytes reserved and not in use while the reserved bytes were highest; the least, if
            that was so at several moments.
    """

    def __init__(self, allocator: CachingAllocator) -> None:
        self._allocator = allocator
        self._highest = -1
        self.unused = 0
        self.note()

    def note(self) -> None:
        """Look at the allocator, after each request."""
        reserved = self._allocator.reserved_bytes
        if reserved >= self._highest:
            unused = reserved - self._allocator.active_bytes
            if reserved > self._highest:
                self._highest, self.unused = reserved, unused
            elif unused < self.unused:
                self.unused = unused
