"""The events of an allocator, and who observes them."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Final, Protocol

from .blocks import BlockPool, PoolId

GROWTH: Final = frozenset({"segment_alloc", "segment_map"})
RELEASES: Final = frozenset({"segment_free", "segment_unmap"})
ACTIONS: Final = (
    GROWTH | RELEASES | {"alloc", "free_requested", "free_completed", "oom", "snapshot"}
)
"""Names of an allocator's events, as in PyTorch's memory history."""

HISTORY_ACTIONS: Final = ACTIONS | {"annotate"}
"""Those, and what else stands in a memory history."""

Observer = Callable[[str, int, int, int], None]
"""Called with an action, an address, a size in bytes and a stream, while the allocator works."""


class BlockLog(Protocol):
    """Keeps the blocks in use of one allocator; it is told of an event before the observers."""

    def allocated(self, address: int, size: int, requested: int, stream: int) -> None:
        """A block of ``size`` bytes serves a request of ``requested`` bytes."""

    def freed(self, address: int, *, waits: bool) -> None:
        """The program gave a block back; it waits if other streams still use it."""

    def completed(self, address: int) -> None:
        """A block that waited is free."""

    def happened(
        self, action: str, address: int, size: int, stream: int, pool_id: PoolId | None
    ) -> None:
        """Another event: of a segment, or out of memory."""

    def settle(self, in_use: Container[int], waiting: Container[int]) -> None:
        """Give up blocks that are not at these addresses: an error kept their events away."""


class AllocatorEvents:
    """The observers of one allocator."""

    # ``ACTIONS`` of blocks come with the size requested, those of segments with the size of the
    # segment or its pages, ``oom`` with the bytes free on the GPU in place of an address, and
    # ``snapshot`` with the active bytes.

    __slots__ = ("log", "observers", "pool")

    def __init__(self, log: BlockLog | None) -> None:
        # called with every event, in the order in which they came
        self.observers: tuple[Observer, ...] = ()
        self.log = log  # of the blocks in use, None without one
        self.pool: BlockPool | None = None  # of the event that the observers are called with

    def add(self, observer: Observer) -> None:
        """Call one more observer from now on; one that is called already is not called twice."""
        if observer not in self.observers:
            self.observers = (*self.observers, observer)

    def remove(self, observer: Observer) -> None:
        self.observers = tuple(other for other in self.observers if other != observer)

    def tell(
        self, action: str, address: int, size: int, stream: int, pool: BlockPool | None = None
    ) -> None:
        """Call the log and the observers with an event that is not of one block."""
        if self.log is not None and action != "snapshot":
            private = None if pool is None else pool.private
            pool_id = None if private is None else private.pool_id
            self.log.happened(action, address, size, stream, pool_id)
        self.tell_observers(action, address, size, stream, pool)

    def tell_observers(
        self, action: str, address: int, size: int, stream: int, pool: BlockPool | None
    ) -> None:
        """Call the observers with an event of a pool."""
        self.pool = pool
        for observer in self.observers:
            observer(action, address, size, stream)
