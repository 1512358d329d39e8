"""Embeddings: the sort of indices and the partial sums behind the gradient of a weight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from ...hardware.decisions import decision
from .. import cub
from ..memory_formats import LOW_PRECISION
from ..memory_model import Basis, Entry, nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ...hardware.gpu import GPU
    from ..op_call import OpCall

_UNSORTED: Final = 3072
"""Most indices whose gradients are added up without sorting them."""

_ROWS_PER_THREAD: Final = 10
_MOST_THREADS: Final = 1024
_MOST_BLOCKS_PER_PROCESSOR: Final = 4
_MAX: Final = 2
"""Mode of an embedding bag that takes the largest of each column."""


def sort_indices(call: OpCall) -> None:
    """``embedding_dense_backward``, before its result: many indices are sorted."""
    gradient, indices = call.args[:2]
    call.alloc_contiguous(indices, gradient)
    if _is_sorted(call):
        _sort(call, indices, counts=call.argument(4, "scale_grad_by_freq", False))


def gradient(call: OpCall) -> None:
    """``embedding_dense_backward``: partial sums of many indices' gradients."""
    if _is_sorted(call):
        _sum(call, call.args[1], call.args[0].dtype, is_bag=False)


def bag_indices(shift: int) -> Callable[[OpCall], None]:
    """``_embedding_bag_dense_backward``, before its result: indices are sorted but for ``max``."""

    def prepare(call: OpCall) -> None:
        gradient, indices = call.args[:2]
        call.alloc_contiguous(indices, gradient)
        if _sums_bags(call, shift):
            _sort(call, indices, counts=call.args[6 + shift])

    return prepare


def bag_gradient(shift: int) -> Callable[[OpCall], None]:
    """``_embedding_bag_dense_backward``: partial sums of the indices' gradients."""

    def take(call: OpCall) -> None:
        if _sums_bags(call, shift):
            _sum(call, call.args[1], call.args[0].dtype, is_bag=True)

    return take


def _sums_bags(call: OpCall, shift: int) -> bool:
    is_sparse = bool(shift and call.args[9])
    return call.args[7 + shift] != _MAX and not is_sparse and bool(call.args[1].numel())


def _is_sorted(call: OpCall) -> bool:
    count: int = call.args[1].numel()
    return count > _UNSORTED or bool(call.argument(4, "scale_grad_by_freq", False))


def _sort(call: OpCall, indices: torch.Tensor, *, counts: bool) -> None:
    """Take the sorted indices and their order, and pass by what sorting takes."""
    count, width = indices.numel(), indices.element_size()
    nbytes = count * width
    for _sorted_and_order in range(2):
        call.alloc_temp(nbytes)
    with call.scope():
        call.alloc_temp(nbytes)
        call.alloc_temp(cub.radix_sort(call.model, count, width, width))
    if counts:
        call.alloc_temp(nbytes)
        call.alloc_and_free(*[cub.scan_by_key(count, width, width)] * 2)


def _sum(call: OpCall, indices: torch.Tensor, dtype: torch.dtype, *, is_bag: bool) -> None:
    """Take what adds up sorted indices' gradients: ``EmbeddingBackwardKernel.cu``."""
    rows, columns = call.result.shape
    count, width = indices.numel(), indices.element_size()
    accumulated = 4 if dtype in LOW_PRECISION else dtype.itemsize
    segments = min(count, rows)
    partial = count // _ROWS_PER_THREAD + segments
    call.alloc_temp(count * width)
    call.alloc_temp(8)
    with call.scope():
        call.alloc_temp(count * width)
        call.alloc_temp(cub.select(count, width))
    for _partial_sums_and_offsets in range(2):
        call.alloc_temp(segments * width)
    call.alloc_and_free(cub.scan(segments, width))
    call.alloc_temp(8)
    call.alloc_temp(partial * width)
    if is_bag or not _adds_atomically(call, segments, partial, columns):
        call.alloc_temp(partial * columns * accumulated)
        return
    call.alloc_temp(partial * width)
    if dtype in LOW_PRECISION:
        call.alloc_temp(rows * columns * accumulated)


def _adds_atomically(call: OpCall, segments: int, partial: int, columns: int) -> bool:
    """Whether partial sums go to the gradient at once: when few rows get many."""
    padded = -(-columns // 32) * 32
    blocks = -(-segments * padded // min(padded, _MOST_THREADS))
    return (
        _runs_at_once(call.model, blocks)
        and partial > blocks * 4
        and not torch.are_deterministic_algorithms_enabled()
    )


@decision
def _runs_at_once(gpu: GPU, blocks: int) -> bool:
    """Whether so many blocks of threads are fewer than the GPU runs at once."""
    return blocks < gpu.multi_processor_count * _MOST_BLOCKS_PER_PROCESSOR


def bag_inputs(call: OpCall) -> None:
    """``_embedding_bag``, before its results: contiguous indices and offsets."""
    call.alloc_contiguous(*call.args[1:3])


_BACKWARD: Final = "aten/src/ATen/native/cuda/Embedding.cu, EmbeddingBackwardKernel.cu"
_BAG: Final = "aten/src/ATen/native/cuda/EmbeddingBag.cu, EmbeddingBackwardKernel.cu"

ENTRIES: Final[Mapping[str, Entry]] = {
    "aten::embedding_dense_backward": Entry(gradient, _BACKWARD, Basis.ESTIMATE, sort_indices),
    "aten::_embedding_bag": Entry(nothing, _BAG, Basis.SOURCE, bag_inputs),
    "aten::_embedding_bag_forward_only": Entry(nothing, _BAG, Basis.SOURCE, bag_inputs),
    "aten::_embedding_bag_dense_backward": Entry(
        bag_gradient(0), _BAG, Basis.ESTIMATE, bag_indices(0)
    ),
    "aten::_embedding_bag_backward": Entry(bag_gradient(1), _BAG, Basis.ESTIMATE, bag_indices(1)),
}
