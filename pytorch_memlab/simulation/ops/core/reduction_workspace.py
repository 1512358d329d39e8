"""Workspaces of reductions: a buffer for partial results, and semaphores, part by part.

The launch decides what memory results are staged in. Its rules are those of
``aten/src/ATen/native/cuda/Reduce.cuh`` (``setReduceConfig``) and, for the order of dimensions, of
``aten/src/ATen/TensorIterator.cpp``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, islice
from math import prod
from operator import mul
from typing import Final

import torch

from ...hardware.decisions import decision
from ...hardware.gpu import GPU
from .memory_formats import LOW_PRECISION, MAX_INT32, acc_type
from .op_call import OpCall

VALUE_AND_INDEX: Final = 16
"""Bytes of a pair of a value of up to 8 bytes and its index."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """The parameters that a reduction is compiled with."""

    accumulator: int  # bytes of what a thread accumulates in
    threads: int = 512  # most of a block
    vector: int = 4  # how many inputs a thread loads at once
    fits_result: bool = True  # partial results of a reduction in parts are kept in the result


def alloc_reduction_workspace(
    call: OpCall,
    source: torch.Tensor,
    dims: Sequence[int] | int | None,
    kernel: Kernel,
    widths: tuple[int, int],
) -> None:
    """Allocate and free buffer and semaphores of each part of a reduction, one after another."""
    if not source.numel():
        return
    reduced = reduced_dims(dims, source.dim())
    sizes, strides = tuple(source.shape), source.stride()
    partial, parts = _staging(sizes, strides, reduced, call.model, widths, kernel)
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
    staged = (staging_of(gpu, part, kernel) for part in parts)
    return partial, tuple(size for size in staged if size is not None)


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
    accumulated = acc_type(of) if of.is_floating_point or of.is_complex else torch.int64
    kernel = Kernel(
        accumulated.itemsize,
        256 if of == torch.complex128 else 512,  # ``max_reduce_threads`` of ``Reduce.cuh``
        fits_result=not (of in LOW_PRECISION and source.dtype == of),
    )
    widths = (element_size or source.element_size(), of.itemsize)
    alloc_reduction_workspace(call, source, dims, kernel, widths)


def alloc_column_sums_workspace(call: OpCall, rows: int, columns: int, dtype: torch.dtype) -> None:
    """Allocate and free the workspace of the sum of a contiguous matrix over its rows."""
    alloc_sum_workspace(call, torch.empty((rows, columns), dtype=dtype, device="meta"), 0)


def alloc_extremes_workspace(
    call: OpCall,
    source: torch.Tensor,
    dims: Sequence[int] | int | None = None,
) -> None:
    """Allocate and free the workspace of the largest values of a tensor."""
    width = source.element_size()
    kernel = Kernel(width, fits_result=source.dtype not in LOW_PRECISION)
    alloc_reduction_workspace(call, source, dims, kernel, (width, width))


def alloc_bounds(call: OpCall, source: torch.Tensor) -> None:
    """Allocate and free the smallest and the largest value of a tensor, and what finds them."""
    for _smallest_and_largest in range(2):
        with call.scope():
            call.alloc_temp(source.element_size())
            alloc_extremes_workspace(call, source)


# ``min_values_per_thread`` and ``max_values_per_thread`` of ``setReduceConfig`` in
# ``aten/src/ATen/native/cuda/Reduce.cuh``.
_WARP: Final = 32
_MIN_VALUES_PER_THREAD: Final = 16
_MAX_VALUES_PER_THREAD: Final = 256


@dataclass(frozen=True, slots=True)
class Reduction:
    """A reduction after its dimensions were ordered and joined."""

    # of the dimensions, the reduced ones first, the fastest of each kind first
    sizes: tuple[int, ...]
    strides: tuple[int, ...]  # of the input in these dimensions, in elements
    reduced: int  # how many dimensions are reduced
    # strides of the result in these dimensions, in elements; 0 where it is reduced
    results: tuple[int, ...]

    def halves(self, element_size: int, result_size: int) -> tuple[Reduction, ...]:
        """The parts that fit into 32-bit offsets, in the order in which they are reduced."""
        # ``TensorIteratorBase::with_32bit_indexing`` halves the dimension with the largest extent
        # in bytes until the offsets of all operands fit.
        operands = ((self.strides, element_size), (self.results, result_size))
        extents = [
            max((size - 1) * strides[dim] * width for strides, width in operands)
            for dim, size in enumerate(self.sizes)
        ]
        spans = (
            1 + sum((size - 1) * strides[dim] * width for dim, size in enumerate(self.sizes))
            for strides, width in operands
        )
        if max(prod(self.sizes), *spans) <= MAX_INT32:
            return (self,)
        widest = max(reversed(range(len(extents))), key=extents.__getitem__)
        first = self.sizes[widest] // 2
        return tuple(
            part
            for size in (first, self.sizes[widest] - first)
            for part in replace(
                self, sizes=(*self.sizes[:widest], size, *self.sizes[widest + 1 :])
            ).halves(element_size, result_size)
        )


def reduction_of(sizes: Sequence[int], strides: Sequence[int], reduced: Sequence[int]) -> Reduction:
    """Order and join the dimensions of a reduction as ``TensorIterator`` does."""
    dims = [dim for dim in reversed(range(len(sizes))) if sizes[dim] != 1]
    removed = [dim for dim in dims if dim in reduced]
    # Reduced dimensions are ordered by their strides, but expanded ones keep their places.
    ordered = sorted((strides[dim], sizes[dim], dim) for dim in removed if strides[dim])
    places = iter(dim for _, _, dim in ordered)
    removed = [next(places) if strides[dim] else dim for dim in removed]
    first = _joined(removed, sizes, strides)
    second = _joined([dim for dim in dims if dim not in reduced], sizes, strides)
    results = accumulate((size for size, _ in second), mul, initial=1)
    joined = [*first, *second]
    return Reduction(
        tuple(size for size, _ in joined),
        tuple(stride for _, stride in joined),
        len(first),
        (*[0] * len(first), *islice(results, len(second))),
    )


def _joined(
    dims: Sequence[int], sizes: Sequence[int], strides: Sequence[int]
) -> list[tuple[int, int]]:
    """Sizes and strides of dimensions, those joined that are steps of one stride."""
    joined: list[tuple[int, int]] = []
    for dim in dims:
        size, stride = joined[-1] if joined else (0, -1)
        if size * stride == strides[dim] and joined:
            joined[-1] = (size * sizes[dim], stride)
        else:
            joined.append((sizes[dim], strides[dim]))
    return joined


@decision
def staging_of(gpu: GPU, reduction: Reduction, kernel: Kernel) -> tuple[int, int] | None:
    """The bytes that a reduction stages in device memory if it splits each result across blocks."""
    strides, reduced = reduction.strides, reduction.reduced
    inputs = prod(reduction.sizes[:reduced])
    outputs = prod(reduction.sizes[reduced:])
    across_lanes = reduced == len(strides) or (reduced > 0 and strides[0] < strides[reduced])
    output_vector = 1
    dim0, dim1 = (inputs, outputs) if across_lanes else (outputs, inputs)
    if not strides:
        dim0 = dim1 = 1
    elif across_lanes:
        # ``setReduceConfig``, as what follows.
        if strides[0] == 1 and dim0 >= 128 and reduced == 1:
            dim0 //= kernel.vector
    elif strides[reduced] == 1:
        output_vector = _output_vector(reduction)
        dim0 //= output_vector
    width, height = _block_of_threads(dim0, dim1, kernel.threads // output_vector)
    step_input, step_output = (width, 1) if across_lanes else (1, width)
    across_warps = -(-inputs // step_input) >= min(height * 16, _MAX_VALUES_PER_THREAD)
    if across_warps:
        step_input *= height
    else:
        step_output *= height
    values = -(-inputs // step_input)
    grid = -(-(outputs // output_vector) // step_output)
    target = gpu.multi_processor_count * (gpu.max_threads_per_multi_processor // (width * height))
    if not across_warps or values < _MAX_VALUES_PER_THREAD or grid > target:
        return None
    blocks = max(
        min(-(-target // grid), -(-values // _MIN_VALUES_PER_THREAD)),
        -(-values // _MAX_VALUES_PER_THREAD),
    )
    if blocks <= 1:
        return None
    of_result = 1 if across_lanes else width * output_vector
    return kernel.accumulator * outputs * blocks * of_result, 4 * grid


def _block_of_threads(dim0: int, dim1: int, most: int) -> tuple[int, int]:
    """Width and height."""
    width, height = (last_power_of_2(dim) if dim < most else most for dim in (dim0, dim1))
    height = min(height, most // min(width, _WARP))
    return min(width, most // height), height


def _output_vector(reduction: Reduction) -> int:
    """The number of results that a thread makes at once; blocks of memory are aligned for it."""
    vector = 4
    divided = [reduction.sizes[reduction.reduced]]
    divided += [stride for dim, stride in enumerate(reduction.strides) if dim != reduction.reduced]
    for number in divided:
        while number % vector:
            vector //= 2
    return vector


def last_power_of_2(number: int) -> int:
    """The largest power of 2 that is not above a number; 1 if that is 0."""
    return 1 << (max(1, number).bit_length() - 1)
