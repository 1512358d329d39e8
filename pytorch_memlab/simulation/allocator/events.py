"""What an allocator does, told to an observer event by event."""

from __future__ import annotations

from collections.abc import Callable

Observer = Callable[[str, int, int, int], None]
"""Called with an action, an address, a size in bytes and a stream, while the allocator works."""


class AllocatorEvents:
    """Where the parts of one allocator tell what they do.

    The actions are those of PyTorch's memory history: ``alloc``, ``free_requested`` and
    ``free_completed`` with the size requested, ``segment_alloc``, ``segment_free``,
    ``segment_map`` and ``segment_unmap`` with the size of the segment or its pages, ``oom`` with
    the bytes free on the GPU in place of an address, and ``snapshot`` with the active bytes.

    Attributes:
        observer: called with every event; None while nobody observes.
    """

    __slots__ = ("observer",)

    def __init__(self) -> None:
        self.observer: Observer | None = None

    def tell(self, action: str, address: int, size: int, stream: int) -> None:
        """Call the observer, if there is one.

        Args:
            action: what was done.
            address: of the block, the segment or the pages.
            size: in bytes.
            stream: that it belongs to.
        """
        if self.observer is not None:
            self.observer(action, address, size, stream)
