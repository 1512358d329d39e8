"""Workspaces of reductions: a buffer for partial results, and semaphores, part by part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Final

import torch

from ..hardware.gpu import GPU
from .memory_formats import LOW_PRECISION
from .op_call import OpCall
from .reduce_config import reduction_of, staging_of

_ACCUMULATED_IN: Final = {
    torch.float16: 4,
    torch.bfloat16: 4,
    torch.float32: 4,
    torch.float64: 8,
    torch.complex64: 8,
    torch.complex128: 16,
}
"""Bytes of the type that a sum of each dtype is accumulated in; integers take 8."""

VALUE_AND_INDEX: Final = 16
"""Bytes of a pair of a value of up to 8 bytes and its index."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """The parameters that a reduction is compiled with.

    Args:
        accumulator: bytes of what a thread accumulates in.
        threads: most of a block.
        vector: how many inputs a thread loads at once.
        fits_result: partial results of a reduction in parts are kept in the result.
    """

    accumulator: int
    threads: int = 512
    vector: int = 4
    fits_result: bool = True


def alloc_reduction_workspace(
    call: OpCall,
    sizes: Sequence[int],
    strides: Sequence[int],
    dims: Sequence[int] | int | None,
    widths: tuple[int, int],
    kernel: Kernel,
) -> None:
    """Allocate and free buffer and semaphores of each part of a reduction, one after another."""
    if not prod(sizes):
        return
    reduced = reduced_dims(dims, len(sizes))
    partial, parts = _staging(tuple(sizes), tuple(strides), reduced, call.model, widths, kernel)
    with call.scope():
        if partial:
            call.alloc_temp(partial)
        for buffer, semaphores in parts:
            with call.scope():
                call.alloc_temps([buffer, semaphores])


@lru_cache(4096)
def _staging(
    sizes: tuple[int, ...],
    strides: tuple[int, ...],
    reduced: tuple[int, ...],
    gpu: GPU,
    widths: tuple[int, int],
    kernel: Kernel,
) -> tuple[int, tuple[tuple[int, int], ...]]:
    """Bytes of what keeps partial results of parts, and of each part's buffer and semaphores."""
    whole = reduction_of(sizes, strides, reduced)
    parts = whole.halves(*widths)
    partial = 0
    if len(parts) > 1 and not kernel.fits_result:
        extents = (size * stride for size, stride in zip(whole.sizes, whole.results, strict=True))
        partial = max(1, *extents, 1) * kernel.accumulator
    staged = (
        staging_of(gpu, part, kernel.accumulator, kernel.threads, kernel.vector) for part in parts
    )
    return partial, tuple(one for one in staged if one is not None)


def reduced_dims(dims: Sequence[int] | int | None, count: int) -> tuple[int, ...]:
    """The dimensions that an op reduces, from 0 up."""
    if dims is None or (not isinstance(dims, int) and not len(dims)):
        return tuple(range(count))
    if isinstance(dims, int):
        dims = [dims]
    return tuple(dim % count if count else 0 for dim in dims)


def alloc_sum_workspace(
    call: OpCall,
    source: torch.Tensor,
    dims: Sequence[int] | int | None = None,
    dtype: torch.dtype | None = None,
    element_size: int | None = None,
) -> None:
    """Allocate and free the workspace of a sum, a mean or a norm of a tensor."""
    of = dtype or source.dtype
    kernel = Kernel(
        _ACCUMULATED_IN.get(of, 8),
        256 if of == torch.complex128 else 512,
        fits_result=not (of in LOW_PRECISION and source.dtype == of),
    )
    width = element_size or source.element_size()
    alloc_reduction_workspace(
        call, source.shape, source.stride(), dims, (width, of.itemsize), kernel
    )


def alloc_column_sums_workspace(call: OpCall, rows: int, columns: int, dtype: torch.dtype) -> None:
    """Allocate and free the workspace of the sum of a contiguous matrix over its rows."""
    kernel = Kernel(_ACCUMULATED_IN.get(dtype, 8), fits_result=dtype not in LOW_PRECISION)
    alloc_reduction_workspace(
        call, (rows, columns), (columns, 1), 0, (dtype.itemsize, dtype.itemsize), kernel
    )


def alloc_extremes_workspace(
    call: OpCall,
    source: torch.Tensor,
    dims: Sequence[int] | int | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Allocate and free the workspace of the largest values of a tensor."""
    of = dtype or source.dtype
    kernel = Kernel(of.itemsize, fits_result=of not in LOW_PRECISION)
    alloc_reduction_workspace(
        call, source.shape, source.stride(), dims, (of.itemsize, of.itemsize), kernel
    )


def alloc_aminmax_workspace(call: OpCall, source: torch.Tensor) -> None:
    """Allocate and free the workspace of the smallest and the largest value."""
    width = source.element_size()
    kernel = Kernel(2 * width, fits_result=False)
    dim = call.argument("dim")
    alloc_reduction_workspace(call, source.shape, source.stride(), dim, (width, width), kernel)


def alloc_argmax_workspace(call: OpCall, source: torch.Tensor, dim: int) -> None:
    """Allocate and free the workspace of the indices of largest values."""
    kernel = Kernel(VALUE_AND_INDEX, fits_result=False)
    widths = (source.element_size(), 8)
    alloc_reduction_workspace(call, source.shape, source.stride(), dim, widths, kernel)
