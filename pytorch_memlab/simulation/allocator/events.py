"""The events of an allocator, and who observes them."""

from __future__ import annotations

from collections.abc import Callable

Observer = Callable[[str, int, int, int], None]
"""Called with an action, an address, a size in bytes and a stream, while the allocator works."""


class AllocatorEvents:
    """The observers of one allocator.

    The actions are those of PyTorch's memory history: ``alloc``, ``free_requested`` and
    ``free_completed`` with the size requested, ``segment_alloc``, ``segment_free``,
    ``segment_map`` and ``segment_unmap`` with the size of the segment or its pages, ``oom`` with
    the bytes free on the GPU in place of an address, and ``snapshot`` with the active bytes.

    Attributes:
        observers: called with every event, in the order in which they came.
    """

    __slots__ = ("observers",)

    def __init__(self) -> None:
        self.observers: tuple[Observer, ...] = ()

    def add(self, observer: Observer, *, first: bool = False) -> None:
        """Call one more observer from now on; one that is called already is not called twice."""
        if observer not in self.observers:
            before, after = ((), self.observers) if first else (self.observers, ())
            self.observers = (*before, observer, *after)

    def remove(self, observer: Observer) -> None:
        """Call an observer no more, if it is called."""
        self.observers = tuple(one for one in self.observers if one != observer)

    def tell(self, action: str, address: int, size: int, stream: int) -> None:
        """Call the observers."""
        for observer in self.observers:
            observer(action, address, size, stream)
