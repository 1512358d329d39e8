"""The content of a memory report, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..history.category import Category

if TYPE_CHECKING:
    import torch

    from ..tensors.lines import SourceLine
    from ..tensors.memory import SymbolicSize

ALLOCATION_UNIT = 512
"""Bytes: the CUDA caching allocator rounds every request up to a multiple of this."""

PARAMETERS = Category.PARAMETERS.value
GRADIENTS = Category.GRADIENTS.value
OPTIMIZER_STATE = Category.OPTIMIZER_STATE.value
BUFFERS = Category.BUFFERS.value
SAVED = Category.SAVED.value
OTHERS = Category.OTHERS.value

CATEGORIES = (PARAMETERS, GRADIENTS, OPTIMIZER_STATE, BUFFERS, SAVED, OTHERS)
"""In the order of a report."""


@dataclass(frozen=True, slots=True)
class TensorRow:
    """One row of a report: a tensor, or a part of it that has its own memory.

    Args:
        name: what the tensor is called.
        device: where its memory is.
        size: length of each dimension, ``(1,)`` for a scalar.
        numel: number of elements.
        memory: bytes, a multiple of 512; 0 for a row whose storage an earlier row counts.
        shares: name of that earlier row, else None.
        category: one of ``CATEGORIES``.
        nbytes: bytes of the storage as it was asked for; 0 where ``memory`` is.
        dtype: such as ``float32``.
        is_view: whether it looks at a part of its storage, or at all of it in another way.
        saved_by: name of the node of autograd that saved the storage for backward, else None.
        line: the line that made that node, or else that allocated the storage, where it is known.
        identity: the same in two snapshots for the same part of the same tensor, and for no other;
            empty for a row whose storage an earlier row counts.
    """

    name: str
    device: torch.device
    size: tuple[int | SymbolicSize, ...]
    numel: int
    memory: int
    shares: str | None = None
    category: str = OTHERS
    nbytes: int = 0
    dtype: str = ""
    is_view: bool = False
    saved_by: str | None = None
    line: SourceLine | None = None
    identity: str = ""


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """The memory of one device in parts, in bytes; each sum holds to the byte.

    ``tensors + saved + rounding + workspaces + unknown == allocated``,
    ``allocated + cached == reserved``, and where the driver reports it,
    ``reserved + context + others == used``.

    Args:
        device: which.
        tensors: storages of live tensors, each once, as many bytes as were asked for.
        saved: storages that autograd saved for backward.
        rounding: what the allocator's blocks are larger than what was asked for.
        workspaces: what kernels keep between calls: cuBLAS' workspaces.
        unknown: allocated, and none of these.
        allocated: what the allocator counts as allocated.
        cached: what it keeps for later.
        reserved: what it holds of the driver.
        context: other bytes of the process, None if the driver does not report them.
        others: what other processes hold, None if the driver does not report them.
        used: what is not free on the device, None if the driver was not asked.
        foreign: bytes of tensors whose memory is not this allocator's; no part of these sums.
        notes: what is an estimate.
    """

    device: torch.device
    tensors: int
    saved: int
    rounding: int
    workspaces: int
    unknown: int
    allocated: int
    cached: int
    reserved: int
    context: int | None = None
    others: int | None = None
    used: int | None = None
    foreign: int = 0
    notes: tuple[str, ...] = ()
