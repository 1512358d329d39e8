"""The callbacks of ``torch.cuda._gpu_trace``: the events that CUDA Sanitizer receives."""

from __future__ import annotations

import threading
from collections import deque

import torch
import torch.cuda._gpu_trace as registry


class _NextPointer(threading.local):
    value: int | None = None


class TraceCallbacks:
    """Calls them. What an allocator does is told once it is done, as callbacks may allocate.

    Memory of a tensor has the address that ``data_ptr()`` gives, which is one of the CPU: callbacks
    look for tensors by it. Other memory has its address on the GPU.
    """

    def __init__(self) -> None:
        self._later: deque[tuple[str, int]] = deque()
        self._next = _NextPointer()
        self._pointers: dict[int, int] = {}

    def expect(self, storage: torch.UntypedStorage | None) -> None:
        """Name the next memory that this thread takes by a storage's pointer; None: it has none."""
        self._next.value = storage.data_ptr() if storage is not None and storage.nbytes() else None

    def fire(self, event: str, *args: int) -> None:
        getattr(registry, f"{event}Callbacks").fire_callbacks(*args)

    def observe(self, action: str, address: int, _size: int, _stream: int) -> None:
        """Remember what an allocator does until `tell`: what ``AllocatorEvents`` calls."""
        if action == "alloc":
            pointer, self._next.value = self._next.value or address, None
            self._pointers[address] = pointer
            self._later.append(("MemoryAllocation", pointer))
        elif action == "free_requested":
            pointer = self._pointers.pop(address, address)
            self._later.append(("MemoryDeallocation", pointer))

    def tell(self) -> None:
        """Call the callbacks of what allocators did since the last call."""
        while self._later:
            self.fire(*self._later.popleft())
