"""Sorting: the copies, index buffers and temporary storage of ``sort``, ``topk`` and ``isin``."""

from __future__ import annotations

from math import ceil, log2
from typing import Final

import torch

from ...machine.torch_release import RELEASE
from ..core import cub
from ..core.memory_formats import MAX_INT32, is_dense
from ..core.op_call import INDEX, OpCall, contiguous
from ..core.reduction_workspace import alloc_extremes_workspace
from ..core.registry import define, estimated, op

_SORT: Final = "aten/src/ATen/native/cuda/Sort.cpp, SortStable.cu"
_SORTING: Final = "aten/src/ATen/native/cuda/Sorting.cpp"

_SMALL: Final = 4096
"""Longest slice that one block of threads sorts in place."""

_LONG: Final = 1_000_000
"""Length of a slice that keeps a GPU busy in a separate sort: ``launch_stable_sort_kernel`` in
``aten/src/ATen/native/cuda/SortStable.cu``."""

_FEW: Final = 128
"""Slices from which on a segmented sort is faster than two sorts of everything: the same place."""

_THREADS: Final = 256
_DIGITS: Final = 256
_BLOCKS_PER_PROCESSOR: Final = 65536 // (40 * _THREADS)
"""Of the kernel of ``topk``: it takes 40 of an SM's 65,536 registers a thread."""

_SUMS_DIGITS_SINCE: Final = (2, 10)
"""Release in which a kernel adds up the digits of all blocks of a slice, where before the last
block did that a semaphore told (pull request 164459)."""


@estimated("aten::sort", "aten::sort.stable", source=_SORT)
def _sort_memory(call: OpCall) -> None:
    """Contiguous copies where the slices are not, then ``sort_slices``."""
    call.alloc_outputs()
    source: torch.Tensor = call.args[0]
    dim = call.argument("dim")
    values: torch.Tensor = call.result[0]
    if not source.dim() or not source.numel():
        return
    length = source.shape[dim]
    if length <= _SMALL:
        call.alloc_temp(length * INDEX)  # a range, copied into the indices
        return
    if not (is_dense(source) and source.stride(dim) == 1):
        call.alloc_copy(source)
        if values.stride(dim) != 1:
            call.alloc_copy(source)
            call.alloc_temp(source.numel() * INDEX)
    sort_slices(call, source.numel(), length, source.dtype)


def sort_slices(call: OpCall, count: int, length: int, dtype: torch.dtype) -> None:
    """Allocate and free what a stable sort of contiguous slices needs."""
    # The rules are those of ``aten/src/ATen/native/cuda/SortStable.cu``.
    batch = min(count, MAX_INT32) // length * length
    for begin in range(0, count, batch):
        with call.scope():
            _sort_batch(call, min(batch, count - begin), length, dtype)


def _sort_batch(call: OpCall, count: int, length: int, dtype: torch.dtype) -> None:
    slices = count // length
    key = dtype.itemsize
    gpu = call.model
    if slices == 1 or length >= _LONG:
        call.alloc_temp(length * INDEX)
        size = cub.radix_sort(gpu, length, key, INDEX, is_float=dtype.is_floating_point)
        call.alloc_and_free(*[size] * slices)
    elif slices < _FEW:
        call.alloc_temps([count * INDEX] * 2)  # slices and indices
        with call.scope():
            call.alloc_temps([count * key, cub.radix_sort(gpu, count, key, INDEX)])
        call.alloc_and_free(cub.radix_sort(gpu, count, INDEX, bits=max(1, ceil(log2(slices)))))
    else:
        call.alloc_temps([count * INDEX, cub.segmented_radix_sort(count, key, INDEX)])


@estimated("aten::topk", source="aten/src/ATen/native/cuda/TensorTopK.cpp, TensorTopK.cu")
def _topk(call: OpCall) -> None:
    call.alloc_outputs()
    source: torch.Tensor = call.args[0]
    count: int = call.args[1]
    if source.dim() and count:
        is_sorted = call.argument("sorted")
        alloc_topk(call, source, call.argument("dim"), count, is_sorted=is_sorted)


def alloc_topk(
    call: OpCall, source: torch.Tensor, dim: int, count: int, *, is_sorted: bool = True
) -> None:
    """Allocate what the largest elements of slices need."""
    # They are found by a sort, by several blocks of threads for a slice, or by one, which allocates
    # nothing, as in ``aten/src/ATen/native/cuda/TensorTopK.cpp`` and ``TensorTopK.cu``.
    length = source.shape[dim]
    if not source.numel():
        return
    slices = source.numel() // length
    # ``should_use_sort`` in ``TensorTopK.cpp``; its bounds are those of pull request 68632.
    if slices <= 10 and length >= 100_000 and source.dtype != torch.bool:
        call.alloc_copy(source)
        call.alloc_temp(source.numel() * INDEX)
        if not (is_dense(source) and source.stride(dim) == 1):
            call.alloc_copy(source)
        sort_slices(call, source.numel(), length, source.dtype)
        return
    with call.scope():
        call.alloc_contiguous(source)
        # ``should_use_multiblock`` in ``TensorTopK.cu``: slices up to so many take several blocks
        # of threads from such a length on, and more slices from 400 on (pull request 74267).
        bounds = ((20, 20000), (40, 10000), (80, 8000), (199, 5000), (799, 3000), (4000, 800))
        if length >= next((shortest for most, shortest in bounds if slices <= most), 400):
            _select(call, slices, length, source.dtype)
    if is_sorted and count > _SMALL:
        elements = slices * count
        call.alloc_temps([elements * INDEX, elements * source.element_size()])
        with call.scope():
            sort_slices(call, elements, count, source.dtype)
        call.alloc_temp(elements * INDEX)


def _select(call: OpCall, slices: int, length: int, dtype: torch.dtype) -> None:
    resident = call.model.multi_processor_count * _BLOCKS_PER_PROCESSOR * _THREADS
    # ``get_items_per_thread`` in ``TensorTopK.cu``, between its least and its most items.
    items = max(4, min(-(-slices * length // resident), 64))
    blocks = slices * -(-length // (items * _THREADS))
    sums_digits = RELEASE >= _SUMS_DIGITS_SINCE
    call.alloc_temp(slices * dtype.itemsize)
    if not sums_digits:
        call.alloc_temp(slices * 4)  # semaphores
    call.alloc_temp(2 * slices * 4)
    call.alloc_temp(2 * slices * (8 if dtype.itemsize == 8 else 4))
    call.alloc_temp(blocks * _DIGITS * 2)
    if sums_digits:
        call.alloc_temp(slices * _DIGITS * 4)
    call.alloc_temps([blocks * 4] * 2)  # those within, and those equal to the k-th
    call.alloc_and_free(*[cub.scan_by_key(call.model, blocks, 4)] * 2)


@estimated("aten::median", "aten::nanmedian", source=_SORTING)
def _median(call: OpCall) -> None:
    """A sort of a copy of all elements."""
    source: torch.Tensor = call.args[0]
    if not source.numel():
        return
    call.alloc_contiguous(source)
    call.alloc_copy(source)
    with call.scope():
        call.alloc_temp(source.numel() * INDEX)
        if source.numel() <= _SMALL:
            call.alloc_temp(source.numel() * INDEX)
        else:
            sort_slices(call, source.numel(), source.numel(), source.dtype)


op("aten::kthvalue", "aten::median.dim", "aten::nanmedian.dim", source=_SORTING)(
    contiguous(0, before_outputs=True)
)


@estimated("aten::mode", source="aten/src/ATen/native/cuda/TensorModeKernel.cpp")
def _mode(call: OpCall) -> None:
    """The dimension moved to the end, contiguous."""
    call.alloc_outputs()
    source: torch.Tensor = call.args[0]
    if source.dim():
        call.alloc_contiguous(source.transpose(call.argument("dim"), -1))


_SOURCE: Final = "aten/src/ATen/native/TensorCompare.cpp, cuda/TensorCompare.cpp"

define("aten::isin.Tensor_Scalar", source=_SOURCE)


@estimated("aten::isin.Tensor_Tensor", source=_SOURCE)
def _isin(call: OpCall) -> None:
    """All comparisons, and what is true of any."""
    # Many elements are sorted instead: the distinct ones, of which only the values tell how many.
    call.alloc_outputs()
    elements, among = call.args[:2]
    if not elements.numel():
        return
    # ``isin_Tensor_Tensor_out`` in ``aten/src/ATen/native/TensorCompare.cpp``, after NumPy.
    if among.numel() >= int(10 * elements.numel() ** 0.145):
        call.leave_out("memory of sorts of distinct elements")
        return
    compared = torch.empty((*elements.shape, among.numel()), dtype=torch.bool, device="meta")
    call.alloc_copy(compared)
    call.alloc_temp(elements.numel())
    alloc_extremes_workspace(call, compared, -1)
