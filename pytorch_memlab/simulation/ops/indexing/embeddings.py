"""Embeddings: the sort of indices and the partial sums behind the gradient of a weight."""

from __future__ import annotations

from typing import Any, Final

import torch

from ...hardware.decisions import decision
from ...hardware.gpu import GPU
from .. import cub
from ..memory_formats import LOW_PRECISION
from ..op_call import OpCall, contiguous
from ..registry import estimated, op

_BACKWARD: Final = "aten/src/ATen/native/cuda/Embedding.cu, EmbeddingBackwardKernel.cu"
_BAG: Final = "aten/src/ATen/native/cuda/EmbeddingBag.cu, EmbeddingBackwardKernel.cu"

_UNSORTED: Final = 3072
"""Most indices whose gradients are added up without sorting them."""

_ROWS_PER_THREAD: Final = 10
_MOST_THREADS: Final = 1024
_MOST_BLOCKS_PER_PROCESSOR: Final = 4
_MAX: Final = 2
"""Mode of an embedding bag that takes the largest of each column."""


@estimated("aten::embedding_dense_backward", source=_BACKWARD)
@estimated("aten::_embedding_bag_dense_backward", "aten::_embedding_bag_backward", source=_BAG)
def _backward(call: OpCall) -> None:
    """Indices are sorted, unless they are few or for ``max``; gradients are summed in parts."""
    grad_output, indices = call.args[:2]
    call.alloc_contiguous(indices, grad_output)
    mode, counts = call.argument("mode"), call.argument("scale_grad_by_freq")
    is_sorted = indices.numel() > _UNSORTED or counts
    if mode is not None:
        is_sorted = mode != _MAX and not call.argument("sparse") and indices.numel()
    if is_sorted:
        _sort(call, indices, counts=counts)
    call.alloc_outputs()
    if is_sorted:
        _sum(call, indices, grad_output.dtype, is_bag=mode is not None)


def _sort(call: OpCall, indices: torch.Tensor, *, counts: bool) -> None:
    """The sorted indices and their order, and what sorting takes."""
    count, width = indices.numel(), indices.element_size()
    nbytes = count * width
    call.alloc_temps([nbytes] * 2)  # sorted indices and their order
    with call.scope():
        call.alloc_temps([nbytes, cub.radix_sort(call.model, count, width, width)])
    if counts:
        call.alloc_temp(nbytes)
        call.alloc_and_free(*[cub.scan_by_key(count, width, width)] * 2)


def _sum(call: OpCall, indices: torch.Tensor, dtype: torch.dtype, *, is_bag: bool) -> None:
    """The sums of the gradients of sorted indices: ``EmbeddingBackwardKernel.cu``."""
    rows, columns = call.result.shape
    count, width = indices.numel(), indices.element_size()
    accumulated = 4 if dtype in LOW_PRECISION else dtype.itemsize
    segments = min(count, rows)
    partial = count // _ROWS_PER_THREAD + segments
    call.alloc_temps([count * width, 8])
    with call.scope():
        call.alloc_temps([count * width, cub.select(count, width)])
    call.alloc_temps([segments * width] * 2)  # partial sums and offsets
    call.alloc_and_free(cub.scan(segments, width))
    call.alloc_temps([8, partial * width])
    if is_bag or not _adds_atomically(call, segments, partial, columns):
        call.alloc_temp(partial * columns * accumulated)
        return
    call.alloc_temp(partial * width)
    if dtype in LOW_PRECISION:
        call.alloc_temp(rows * columns * accumulated)


def _adds_atomically(call: OpCall, segments: int, partial: int, columns: int) -> bool:
    """True if partial sums go to the gradient at once: when few rows get many."""
    padded = -(-columns // 32) * 32
    blocks = -(-segments * padded // min(padded, _MOST_THREADS))
    return (
        _runs_at_once(call.model, blocks)
        and partial > blocks * 4
        and not torch.are_deterministic_algorithms_enabled()
    )


@decision
def _runs_at_once(gpu: GPU, blocks: int) -> bool:
    """True if so many blocks of threads are fewer than the GPU runs at once."""
    return blocks < gpu.multi_processor_count * _MOST_BLOCKS_PER_PROCESSOR


def _correct_bag_meta(args: tuple[Any, ...], result: Any) -> Any:
    """The map from indices to bags has one entry more than it shows; bags have a largest index."""
    output, bags, sizes, largest = result
    if bags.numel():
        bags = bags.new_empty(bags.numel() + 1)[:-1]
    if not largest.numel():
        largest = sizes.new_empty(sizes.shape)
    return output, bags, sizes, largest


_bag: Final = contiguous(1, 2, before_outputs=True)

op("aten::_embedding_bag_forward_only", source=_BAG)(_bag)
op("aten::_embedding_bag", source=_BAG, corrects_meta=_correct_bag_meta)(_bag)
