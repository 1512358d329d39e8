"""A request that does not fit: its error, in PyTorch's own words, and the state at that moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class DeviceOutOfMemoryError(Exception):
    """A request that the GPU cannot serve; the message is that of PyTorch 2.13."""


OTHER_PROCESS = 2**22
"""Number given to the other processes, taken as one: Linux gives numbers below it only."""

# From 2**60 bytes on: one_exa_bytes in allocate() of c10/cuda/CUDACachingAllocator.cpp.
TOO_LARGE = "CUDA out of memory. Tried to allocate more than 1EB memory."


def format_size(size: int) -> str:
    """Return bytes as PyTorch's messages write them.

    >>> format_size(512), format_size(2**20), format_size(2**30 + 1)
    ('512 bytes', '1024.00 KiB', '1.00 GiB')
    """
    # As format_size in c10/cuda/CUDACachingAllocator.cpp: a unit ends with 1024 of it, not before.
    if size <= 2**10:
        return f"{size} bytes"
    if size <= 2**20:
        return f"{size / 2**10:.2f} KiB"
    if size <= 2**30:
        return f"{size / 2**20:.2f} MiB"
    return f"{size / 2**30:.2f} GiB"


def out_of_memory_text(
    *,
    segment_size: int,
    device: int,
    total: int,
    free: int,
    process_memory: int | None,
    other_processes: int,
    allowed: int | None,
    allocated: int,
    private: int,
    reserved: int,
) -> str:
    """Return the text of torch.OutOfMemoryError."""
    pools = ""
    if private:
        pools = f"with {format_size(private)} allocated in private pools (e.g., CUDA Graphs), "
    processes = ""
    if process_memory is not None:
        if other_processes:
            processes = f"Process {OTHER_PROCESS} has {format_size(other_processes)}"
            processes += " memory in use. "
        processes += "Including non-PyTorch memory, this process has "
        processes += f"{format_size(process_memory)} memory in use. "
    limit = f"{format_size(allowed)} allowed; " if allowed is not None else ""
    return (
        f"CUDA out of memory. Tried to allocate {format_size(segment_size)}. "
        f"GPU {device} has a total capacity of {format_size(total)} "
        f"of which {format_size(free)} is free. {processes}{limit}"
        f"Of the allocated memory {format_size(allocated + private)} is allocated by PyTorch, "
        f"{pools}and {format_size(reserved - allocated - private)} is reserved by PyTorch but "
        "unallocated. "
        "If reserved but unallocated memory is large try setting "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  "
        "See documentation for Memory Management  (https://docs.pytorch.org/docs/stable/notes/"
        "cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
    )


def rejection_text(requested_size: int) -> str:
    """Return the text of a request of so many bytes refused by throw_on_cudamalloc_oom."""
    return (
        "CUDA out of memory. Allocation was preemptively rejected because it would exceed "
        f"per_process_memory_fraction limit. Requested size: {format_size(requested_size)}"
    )


class FreeBlock(NamedTuple):
    """A free block that the allocator keeps."""

    size: int  # in bytes
    stream: int  # the only one that it serves


class PrivateMemory(NamedTuple):
    """The memory of private pools, of CUDA graphs and of ``torch.cuda.MemPool``, in bytes."""

    reserved: int = 0
    unused: int = 0  # what is free there, and serves no request of other code
    captures: tuple[tuple[str, int], ...] = ()  # file and line of each capture, if they are known


NO_PRIVATE_MEMORY = PrivateMemory()


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """The state of an allocator and its GPU when a request failed, in bytes."""

    text: str  # of the error
    device: int  # index of the GPU
    requested: int  # what the program asked for
    segment: int  # what the allocator asked the driver for
    stream: int  # of the request
    capacity: int  # of the GPU
    free: int  # what was free on the GPU
    context: int | None  # what the CUDA context takes, None if it is unknown
    others: int | None  # what other processes hold, None if it is unknown
    allowed: int | None  # what the memory fraction allows, None without one
    reserved: int  # what the allocator holds
    blocks: dict[int, int]  # in use: address -> size
    free_blocks: tuple[FreeBlock, ...]  # what the allocator keeps for later, for all code
    private: PrivateMemory = NO_PRIVATE_MEMORY
