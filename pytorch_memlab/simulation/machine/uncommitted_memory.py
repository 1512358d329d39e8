"""CPU tensors in uncommitted memory: they take address space only."""

from __future__ import annotations

import mmap
import sys
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

_NORESERVE = 0x4000 if sys.platform == "linux" else 0
"""``MAP_NORESERVE``, which Python's ``mmap`` names from 3.12 on only."""


def uncommitted(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A CPU tensor whose memory is reserved and never written.

    Linux refuses a single allocation above memory and swap, except one that says
    that it needs no reserve: such a one is taken then. Its storage cannot be resized.

    >>> uncommitted((2**20, 2**20), (2**20, 1), torch.float32).shape
    torch.Size([1048576, 1048576])
    """
    try:
        return torch.empty_strided(size, stride, dtype=dtype)
    except RuntimeError:
        if not _NORESERVE or 0 in size:
            raise
        return _mapped(size, stride, dtype)


def _mapped(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    last = sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    nbytes = (last + 1) * dtype.itemsize
    try:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
        region = mmap.mmap(-1, nbytes, flags=flags)
    except (OSError, OverflowError) as error:
        # In the words of torch's own allocator, which others look for.
        raise RuntimeError(
            f"can't reserve memory: you tried to allocate {nbytes} bytes. {error}"
        ) from None
    storage = torch.frombuffer(region, dtype=torch.uint8).untyped_storage()
    return torch.empty(0, dtype=dtype).set_(storage, 0, tuple(size), tuple(stride))
