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

    from ..op_call import Launch

_INDEX: Final = 8
_COUNT: Final = 4
_MAX_INT32: Final = 2**31 - 1
_CHUNK: Final = 2**30


def count_nonzero(launch: Launch, source: torch.Tensor) -> None:
    """Take what counts the elements that are not zero: ``Nonzero.cu``, before its result.

    Args:
        launch: of the op that selects.
        source: whose elements are counted.
    """
    launch.contiguous(source)
    chunks = list(_chunks(source.numel()))
    launch.borrow(_COUNT * len(chunks))
    launch.pass_by(*(cub.reduce(launch.gpu.model, chunk, _COUNT) for chunk in chunks))


def find_nonzero(launch: Launch, source: torch.Tensor) -> None:
    """Take what finds the elements that are not zero: ``Nonzero.cu``, after its result is made.

    Args:
        launch: of the op that selects.
        source: whose elements are found.
    """
    if source.dim():
        launch.pass_by(*(cub.select(chunk, _INDEX) for chunk in _chunks(source.numel())))


def _chunks(count: int) -> Iterator[int]:
    if count < _MAX_INT32:
        yield count
        return
    for begin in range(0, count, _CHUNK):
        yield min(_CHUNK, count - begin)


def nonzero_counts(launch: Launch) -> None:
    """``nonzero``, before its result."""
    count_nonzero(launch, launch.args[0])


def nonzero(launch: Launch) -> None:
    """``nonzero``."""
    find_nonzero(launch, launch.args[0])


def nonzero_static(launch: Launch) -> None:
    """``nonzero_static``: sums of blocks of threads, and sums of these."""
    source: torch.Tensor = launch.args[0]
    if not launch.result.numel() or not source.numel():
        return
    launch.contiguous(source)
    per_block = 512 * 16
    blocks = -(-source.numel() // per_block)
    target = launch.gpu.model.multi_processor_count * (2 if source.element_size() == 1 else 1)
    rounds = -(-blocks // target)
    blocks = -(-source.numel() // (rounds * per_block))
    launch.borrow(blocks * _COUNT)
    launch.borrow(blocks * _INDEX)


def masked_select(launch: Launch) -> None:
    """``masked_select``: before its result, which shows how many, the indices that it selects."""
    first, second = launch.args[:2]
    shape = torch.broadcast_shapes(first.shape, second.shape, (1,))
    mask = second.expand(shape)
    with launch.scope():
        count_nonzero(launch, mask)
    launch.borrow(launch.result.numel() * len(shape) * _INDEX)
    with launch.scope():
        find_nonzero(launch, mask)


def masked_scatter(launch: Launch) -> None:
    """``masked_scatter``: where each element of the mask finds its source."""
    mask, source = launch.args[1:3]
    target: torch.Tensor = launch.result
    if not target.numel():
        return
    launch.borrow(target.numel() * _INDEX)
    launch.contiguous(mask.expand(target.shape))
    launch.pass_by(cub.scan(target.numel(), _INDEX))
    launch.contiguous(source)


def repeat_sums(launch: Launch) -> None:
    """``repeat_interleave``, before its result: sums of the repetitions, and a check of them."""
    repeats: torch.Tensor = launch.args[0]
    count = repeats.numel()
    if not count:
        return
    launch.contiguous(repeats)
    with launch.scope():
        if repeats.dtype != torch.int64:
            launch.borrow(count * _INDEX)
        sums = count * _INDEX
        launch.borrow(sums)
        scan_row(launch, count, torch.int64)
    launch.borrow(sums)
    if launch.kwargs.get("output_size") is None:
        with launch.scope():
            launch.borrow(count)
            launch.borrow(1)
            stage_columns(launch, count, 1, torch.bool)


def range_of_bins(launch: Launch) -> None:
    """``bincount`` and ``histc``, before their results: the smallest and the largest value."""
    source: torch.Tensor = launch.args[0]
    for _smallest_and_largest in range(2):
        with launch.scope():
            launch.borrow(source.element_size())
            stage_values(launch, source)


def find_bins(launch: Launch) -> None:
    """``searchsorted``: contiguous inputs of one type."""
    boundaries, values = launch.args[:2]
    _one_type(launch, boundaries, values, launch.kwargs.get("sorter"))


def bucketize(launch: Launch) -> None:
    """``bucketize``: contiguous inputs of one type."""
    values, boundaries = launch.args[:2]
    _one_type(launch, boundaries, values, None)


def _one_type(
    launch: Launch, boundaries: torch.Tensor, values: torch.Tensor, sorter: torch.Tensor | None
) -> None:
    launch.contiguous(values, boundaries, sorter)
    common = torch.result_type(boundaries, values)
    for tensor in (values, boundaries):
        if tensor.dtype != common:
            launch.borrow(prod(tensor.shape) * common.itemsize)


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
