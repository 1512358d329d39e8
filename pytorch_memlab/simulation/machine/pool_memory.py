"""Host memory behind the addresses of private pools, where captured tensors have their values.

A graph writes to the addresses of its capture, whatever is there when it runs again: an output, a
block that another graph of the same pool uses now, or memory that a program looks at by its
address. So the tensors of a capture are not storages of their own, but parts of one buffer for each
segment, at the places that the allocator chose.
"""

from __future__ import annotations

import mmap
import sys
from typing import TYPE_CHECKING, Final

import torch

from ..._common.torch.storages import host_address

if TYPE_CHECKING:
    from .simulated_gpu import SimulatedGPU

_NO_RESERVE: Final = 0x4000  # MAP_NORESERVE of Linux, which ``mmap`` has from Python 3.13 on


class PoolMemory:
    """The buffers of the segments of one GPU, which take memory where they are written to."""

    def __init__(self, gpu: SimulatedGPU) -> None:
        self._gpu = gpu
        self._buffers: dict[int, mmap.mmap] = {}

    def storage(self, address: int, nbytes: int) -> torch.UntypedStorage:
        """A new storage over the memory of an allocated block."""
        start, size = self._gpu.allocator.segment_of(address)
        buffer = self._buffers.get(start)
        if buffer is None or len(buffer) != size:
            self._forget(start, size)
            buffer = self._buffers[start] = _new_buffer(size)
        return _part(buffer, address - start, nbytes)

    def _forget(self, start: int, size: int) -> None:
        """Give up the buffers of segments that were at some addresses before."""
        for other, buffer in list(self._buffers.items()):
            if other < start + size and start < other + len(buffer):
                del self._buffers[other]

    def storage_at(self, address: int, nbytes: int) -> torch.UntypedStorage | None:
        """A new storage over memory that a capture has used; None for any other address."""
        for start, buffer in self._buffers.items():
            if 0 <= address - start <= len(buffer) - nbytes:
                return _part(buffer, address - start, nbytes)
        return None

    def part(self, storage: torch.UntypedStorage, address: int) -> torch.UntypedStorage | None:
        """Another storage over the memory of one of a capture; None for any other storage."""
        part = self.storage_at(address, storage.nbytes())
        is_same = part is not None and host_address(part) == host_address(storage)
        return part if is_same else None

    def forget_released(self) -> None:
        """Give up the buffers of segments that the GPU has back."""
        starts = {segment["address"] for segment in self._gpu.locked(self._gpu.allocator.segments)}
        for start in self._buffers.keys() - starts:
            del self._buffers[start]


def _new_buffer(size: int) -> mmap.mmap:
    if sys.platform != "linux":
        return mmap.mmap(-1, size)
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)


def _part(buffer: mmap.mmap, offset: int, nbytes: int) -> torch.UntypedStorage:
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        part = torch.frombuffer(buffer, dtype=torch.uint8, count=nbytes, offset=offset)
        return part.untyped_storage()
