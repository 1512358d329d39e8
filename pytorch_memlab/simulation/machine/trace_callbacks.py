"""The callbacks of ``torch.cuda._gpu_trace``: the events that CUDA Sanitizer receives."""

from __future__ import annotations

from collections import deque

import torch.cuda._gpu_trace as registry


class TraceCallbacks:
    """Calls them. What an allocator does is told once it is done, as callbacks may allocate."""

    def __init__(self) -> None:
        self._later: deque[tuple[str, int]] = deque()

    def fire(self, event: str, *args: int) -> None:
        getattr(registry, f"{event}Callbacks").fire_callbacks(*args)

    def observe(self, action: str, address: int, _size: int, _stream: int) -> None:
        """Remember what an allocator does until `tell`: what ``AllocatorEvents`` calls."""
        if action == "alloc":
            self._later.append(("MemoryAllocation", address))
        elif action == "free_requested":
            self._later.append(("MemoryDeallocation", address))

    def tell(self) -> None:
        """Call the callbacks of what allocators did since the last call."""
        while self._later:
            self.fire(*self._later.popleft())
