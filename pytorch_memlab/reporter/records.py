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
    """One row of a report: a tensor, or a part of it that has its own memory."""

    name: str  # what the tensor is called
    device: torch.device  # where its memory is
    size: tuple[int | SymbolicSize, ...]  # length of each dimension, ``(1,)`` for a scalar
    numel: int  # number of elements
    memory: int  # bytes, a multiple of 512; 0 for a row whose storage an earlier row counts
    shares: str | None = None  # name of that earlier row, else None
    category: str = OTHERS  # one of ``CATEGORIES``
    nbytes: int = 0  # bytes of the storage as it was asked for; 0 where ``memory`` is
    dtype: str = ""  # such as ``float32``
    # whether it looks at a part of its storage, or at all of it in another way
    is_view: bool = False
    # name of the node of autograd that saved the storage for backward, else None
    saved_by: str | None = None
    # the line that made that node, or else that allocated the storage, where it is known
    line: SourceLine | None = None
    # the same in two snapshots for the same part of the same tensor, and for no other; empty for
    # a row whose storage an earlier row counts
    identity: str = ""


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """The memory of one device in parts, in bytes; each sum holds to the byte.

    ``tensors + saved + rounding + workspaces + unknown == allocated``,
    ``allocated + cached == reserved``, and where the driver reports it,
    ``reserved + context + others == used``.
    """

    device: torch.device  # which
    tensors: int  # storages of live tensors, each once, as many bytes as were asked for
    saved: int  # storages that autograd saved for backward
    rounding: int  # what the allocator's blocks are larger than what was asked for
    workspaces: int  # what kernels keep between calls: cuBLAS' workspaces
    unknown: int  # allocated, and none of these
    allocated: int  # what the allocator counts as allocated
    cached: int  # what it keeps for later
    reserved: int  # what it holds of the driver
    # other bytes of the process, None if the driver does not report them
    context: int | None = None
    others: int | None = None  # what other processes hold, None if the driver does not report them
    used: int | None = None  # what is not free on the device, None if the driver was not asked
    foreign: int = 0  # bytes of tensors whose memory is not this allocator's; no part of these sums
    notes: tuple[str, ...] = ()  # what is an estimate
