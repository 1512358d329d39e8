"""Selection by values: counting and finding what is not zero, masks, repetitions, histograms."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final

import torch

from .. import cub
from ..memory_model import Basis, Entry, nothing
from ..reduction_workspace import stage_columns, stage_values
from ..reductions.scans import scan_row

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ..op_call import OpCall

_INDEX: Final = 8
_COUNT: Final = 4
_MAX_INT32: Final = 2**31 - 1
_CHUNK: Final = 2**30


def count_nonzero(call: OpCall, source: torch.Tensor) -> None:
    """Take what counts the elements that are not zero: ``Nonzero.cu``, before its result."""
    call.alloc_contiguous(source)
    chunks = list(_chunks(source.numel()))
    call.alloc_temp(_COUNT * len(chunks))
    call.alloc_and_free(*(cub.reduce(call.model, chunk, _COUNT) for chunk in chunks))


def find_nonzero(call: OpCall, source: torch.Tensor) -> None:
    """Take what finds the elements that are not zero: ``Nonzero.cu``, after its result is made."""
    if source.dim():
        call.alloc_and_free(*(cub.select(chunk, _INDEX) for chunk in _chunks(source.numel())))


def _chunks(count: int) -> Iterator[int]:
    if count < _MAX_INT32:
        yield count
        return
    for begin in range(0, count, _CHUNK):
        yield min(_CHUNK, count - begin)


def nonzero_counts(call: OpCall) -> None:
    """``nonzero``, before its result."""
    count_nonzero(call, call.args[0])


def nonzero(call: OpCall) -> None:
    """``nonzero``."""
    find_nonzero(call, call.args[0])


def nonzero_static(call: OpCall) -> None:
    """``nonzero_static``: sums of blocks of threads, and sums of these."""
    source: torch.Tensor = call.args[0]
    if not call.result.numel() or not source.numel():
        return
    call.alloc_contiguous(source)
    per_block = 512 * 16
    blocks = -(-source.numel() // per_block)
    target = call.model.multi_processor_count * (2 if source.element_size() == 1 else 1)
    rounds = -(-blocks // target)
    blocks = -(-source.numel() // (rounds * per_block))
    call.alloc_temp(blocks * _COUNT)
    call.alloc_temp(blocks * _INDEX)


def masked_select(call: OpCall) -> None:
    """``masked_select``: before its result, which shows how many, the indices that it selects."""
    first, second = call.args[:2]
    shape = torch.broadcast_shapes(first.shape, second.shape, (1,))
    mask = second.expand(shape)
    with call.scope():
        count_nonzero(call, mask)
    call.alloc_temp(call.result.numel() * len(shape) * _INDEX)
    with call.scope():
        find_nonzero(call, mask)


def masked_scatter(call: OpCall) -> None:
    """``masked_scatter``: where each element of the mask finds its source."""
    mask, source = call.args[1:3]
    target: torch.Tensor = call.result
    if not target.numel():
        return
    call.alloc_temp(target.numel() * _INDEX)
    call.alloc_contiguous(mask.expand(target.shape))
    call.alloc_and_free(cub.scan(target.numel(), _INDEX))
    call.alloc_contiguous(source)


def repeat_sums(call: OpCall) -> None:
    """``repeat_interleave``, before its result: sums of the repetitions, and a check of them."""
    repeats: torch.Tensor = call.args[0]
    count = repeats.numel()
    if not count:
        return
    call.alloc_contiguous(repeats)
    with call.scope():
        if repeats.dtype != torch.int64:
            call.alloc_temp(count * _INDEX)
        sums = count * _INDEX
        call.alloc_temp(sums)
        scan_row(call, count, torch.int64)
    call.alloc_temp(sums)
    if call.kwargs.get("output_size") is None:
        with call.scope():
            call.alloc_temp(count)
            call.alloc_temp(1)
            stage_columns(call, count, 1, torch.bool)


def range_of_bins(call: OpCall) -> None:
    """``bincount`` and ``histc``, before their results: the smallest and the largest value."""
    source: torch.Tensor = call.args[0]
    for _smallest_and_largest in range(2):
        with call.scope():
            call.alloc_temp(source.element_size())
            stage_values(call, source)


def find_bins(call: OpCall) -> None:
    """``searchsorted``: contiguous inputs of one type."""
    boundaries, values = call.args[:2]
    _one_type(call, boundaries, values, call.kwargs.get("sorter"))


def bucketize(call: OpCall) -> None:
    """``bucketize``: contiguous inputs of one type."""
    values, boundaries = call.args[:2]
    _one_type(call, boundaries, values, None)


def _one_type(
    call: OpCall, boundaries: torch.Tensor, values: torch.Tensor, sorter: torch.Tensor | None
) -> None:
    call.alloc_contiguous(values, boundaries, sorter)
    common = torch.result_type(boundaries, values)
    for tensor in (values, boundaries):
        if tensor.dtype != common:
            call.alloc_temp(prod(tensor.shape) * common.itemsize)


_NONZERO: Final = "aten/src/ATen/native/cuda/Nonzero.cu"
_MASKED: Final = "aten/src/ATen/native/cuda/IndexKernel.cpp, Nonzero.cu"
_SCATTER: Final = "aten/src/ATen/native/cuda/IndexKernel.cpp, IndexKernel.cu"
_BUCKETS: Final = "aten/src/ATen/native/BucketizationUtils.h, cuda/Bucketization.cu"
_HISTOGRAM: Final = "aten/src/ATen/native/cuda/SummaryOps.cu"

ENTRIES: Final[Mapping[str, Entry]] = {
    "aten::nonzero": Entry(nonzero, _NONZERO, Basis.ESTIMATE, nonzero_counts),
    "aten::nonzero_static": Entry(nonzero_static, _NONZERO, Basis.SOURCE),
    "aten::masked_select": Entry(nothing, _MASKED, Basis.ESTIMATE, make=masked_select),
    "aten::masked_scatter_backward": Entry(nothing, _MASKED, Basis.ESTIMATE, make=masked_select),
    "aten::masked_scatter": Entry(masked_scatter, _SCATTER, Basis.ESTIMATE),
    "aten::masked_scatter_": Entry(masked_scatter, _SCATTER, Basis.ESTIMATE),
    "aten::repeat_interleave.Tensor": Entry(
        nothing, "aten/src/ATen/native/Repeat.h, cuda/Repeat.cu", Basis.ESTIMATE, repeat_sums
    ),
    "aten::bincount": Entry(nothing, _HISTOGRAM, Basis.ESTIMATE, range_of_bins),
    "aten::searchsorted.Tensor": Entry(find_bins, _BUCKETS, Basis.SOURCE),
    "aten::bucketize.Tensor": Entry(bucketize, _BUCKETS, Basis.SOURCE),
}
