"""The callbacks of ``torch.cuda._gpu_trace``: what CUDA Sanitizer and its kind are told."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import torch.cuda._gpu_trace as registry

if TYPE_CHECKING:
    from .caching_allocator import CachingAllocator


class TraceCallbacks:
    """Calls them; what an allocator does is told after it is done, as callbacks may allocate."""

    def __init__(self) -> None:
        self._later: deque[tuple[str, int]] = deque()

    def fire(self, event: str, *args: int) -> None:
        """Call those of one event.

        Args:
            event: as torch names their list, such as ``"EventWait"``.
            args: handles or addresses.
        """
        getattr(registry, f"{event}Callbacks").fire_callbacks(*args)

    def watch(self, allocator: CachingAllocator) -> None:
        """Remember what an allocator does until `tell`."""
        malloc, free = allocator.malloc, allocator.free

        def traced_malloc(size: int, stream: int = 0) -> int:
            address = malloc(size, stream)
            if address:
                self._later.append(("MemoryAllocation", address))
            return address

        def traced_free(address: int) -> None:
            free(address)
            if address:
                self._later.append(("MemoryDeallocation", address))

        allocator.malloc = traced_malloc  # type: ignore[method-assign]
        allocator.free = traced_free  # type: ignore[method-assign]

    def tell(self) -> None:
        """Call those of what allocators did."""
        while self._later:
            self.fire(*self._later.popleft())
