"""One simulated GPU: its allocator, and the storages that live on it."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .caching_allocator import CachingAllocator, OutOfMemory
from .driver import SimulatedDriver

if TYPE_CHECKING:
    from .allocator_settings import AllocatorSettings
    from .gpus import GPU


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a storage lives.

    Args:
        gpu: the GPU that holds it.
        address: of its block, 0 when it has no bytes.
        nbytes: size of the storage in bytes.
    """

    gpu: SimulatedGPU
    address: int
    nbytes: int


class SimulatedGPU:
    """A GPU with PyTorch's caching allocator on it.

    Storages die whenever Python drops them, also while this very allocator is at work (the
    garbage collector may run inside it). Such a free waits until the allocator is at rest.

    Args:
        index: as in ``cuda:index``.
        model: which hardware it stands for.
        settings: the allocator's.
    """

    def __init__(self, index: int, model: GPU, settings: AllocatorSettings) -> None:
        self.index = index
        self.model = model
        self.device = torch.device("cuda", index)
        self.driver = SimulatedDriver(model.total_memory)
        self.allocator = CachingAllocator(self.driver, settings, index)
        self._busy = threading.Lock()
        self._dead: deque[int] = deque()

    def allocate(self, nbytes: int, stream: int) -> Placement:
        """Take memory for a storage.

        Args:
            nbytes: bytes requested.
            stream: the stream that will use it.

        Returns:
            where it lies.

        Raises:
            torch.OutOfMemoryError: the GPU is full, in PyTorch's own words.
        """
        try:
            with self._busy:
                self._free_dead()
                address = self.allocator.malloc(nbytes, stream)
        except OutOfMemory as error:
            raise torch.OutOfMemoryError(str(error)) from None
        finally:
            self._settle()
        return Placement(self, address, nbytes)

    def release(self, placement: Placement) -> None:
        """Give a storage's memory back to the allocator."""
        if placement.address:
            self._dead.append(placement.address)
            self._settle()

    def in_use(self) -> bool:
        """Whether anything was ever allocated here."""
        return self.allocator.ever_allocated

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of the allocator, alone and after all frees that wait.

        Args:
            method: its name.
            args: its arguments.

        Returns:
            what it returns.
        """
        with self._busy:
            self._free_dead()
            result = getattr(self.allocator, method)(*args)
        self._settle()
        return result

    def _settle(self) -> None:
        while self._dead and self._busy.acquire(blocking=False):
            try:
                self._free_dead()
            finally:
                self._busy.release()

    def _free_dead(self) -> None:
        while self._dead:
            self.allocator.free(self._dead.popleft())
