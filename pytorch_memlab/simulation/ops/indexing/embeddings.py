"""Embeddings: the sort of indices and the partial sums behind the gradient of a weight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from ...hardware.decisions import decision
from .. import cub
from ..memory_model import Basis, Entry, nothing
from ..reduction_workspace import LOW_PRECISION

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ...hardware.gpu import GPU
    from ..op_call import Launch

_UNSORTED: Final = 3072
"""Most indices whose gradients are added up without sorting them."""

_ROWS_PER_THREAD: Final = 10
_MOST_THREADS: Final = 1024
_MOST_BLOCKS_PER_PROCESSOR: Final = 4
_MAX: Final = 2
"""Mode of an embedding bag that takes the largest of each column."""


def sort_indices(launch: Launch) -> None:
    """``embedding_dense_backward``, before its result: many indices are sorted."""
    gradient, indices = launch.args[:2]
    launch.contiguous(indices, gradient)
    if _is_sorted(launch):
        _sort(launch, indices, counts=launch.argument(4, "scale_grad_by_freq", False))


def gradient(launch: Launch) -> None:
    """``embedding_dense_backward``: partial sums of many indices' gradients."""
    if _is_sorted(launch):
        _sum(launch, launch.args[1], launch.args[0].dtype, is_bag=False)


def bag_indices(shift: int) -> Callable[[Launch], None]:
    """``_embedding_bag_dense_backward``, before its result: indices are sorted but for ``max``.

    Args:
        shift: of arguments behind the offsets, which ``_embedding_bag_backward`` takes besides.

    Returns:
        ``prepare`` of an entry.
    """

    def prepare(launch: Launch) -> None:
        gradient, indices = launch.args[:2]
        launch.contiguous(indices, gradient)
        if _sums_bags(launch, shift):
            _sort(launch, indices, counts=launch.args[6 + shift])

    return prepare


def bag_gradient(shift: int) -> Callable[[Launch], None]:
    """``_embedding_bag_dense_backward``: partial sums of the indices' gradients.

    Args:
        shift: of arguments behind the offsets, which ``_embedding_bag_backward`` takes besides.

    Returns:
        the entry's function.
    """

    def take(launch: Launch) -> None:
        if _sums_bags(launch, shift):
            _sum(launch, launch.args[1], launch.args[0].dtype, is_bag=True)

    return take


def _sums_bags(launch: Launch, shift: int) -> bool:
    is_sparse = bool(shift and launch.args[9])
    return launch.args[7 + shift] != _MAX and not is_sparse and bool(launch.args[1].numel())


def _is_sorted(launch: Launch) -> bool:
    count: int = launch.args[1].numel()
    return count > _UNSORTED or bool(launch.argument(4, "scale_grad_by_freq", False))


def _sort(launch: Launch, indices: torch.Tensor, *, counts: bool) -> None:
    """Take the sorted indices and their order, and pass by what sorting takes."""
    count, width = indices.numel(), indices.element_size()
    nbytes = count * width
    for _sorted_and_order in range(2):
        launch.borrow(nbytes)
    with launch.scope():
        launch.borrow(nbytes)
        launch.borrow(cub.radix_sort(launch.gpu.model, count, width, width))
    if counts:
        launch.borrow(nbytes)
        launch.pass_by(*[cub.scan_by_key(count, width, width)] * 2)


def _sum(launch: Launch, indices: torch.Tensor, dtype: torch.dtype, *, is_bag: bool) -> None:
    """Take what adds up sorted indices' gradients: ``EmbeddingBackwardKernel.cu``."""
    rows, columns = launch.result.shape
    count, width = indices.numel(), indices.element_size()
    accumulated = 4 if dtype in LOW_PRECISION else dtype.itemsize
    segments = min(count, rows)
    partial = count // _ROWS_PER_THREAD + segments
    launch.borrow(count * width)
    launch.borrow(8)
    with launch.scope():
        launch.borrow(count * width)
        launch.borrow(cub.select(count, width))
    for _partial_sums_and_offsets in range(2):
        launch.borrow(segments * width)
    launch.pass_by(cub.scan(segments, width))
    launch.borrow(8)
    launch.borrow(partial * width)
    if is_bag or not _adds_atomically(launch, segments, partial, columns):
        launch.borrow(partial * columns * accumulated)
        return
    launch.borrow(partial * width)
    if dtype in LOW_PRECISION:
        launch.borrow(rows * columns * accumulated)


def _adds_atomically(launch: Launch, segments: int, partial: int, columns: int) -> bool:
    """Whether partial sums go to the gradient at once: when few rows get many."""
    padded = -(-columns // 32) * 32
    blocks = -(-segments * padded // min(padded, _MOST_THREADS))
    return (
        _runs_at_once(launch.gpu.model, blocks)
        and partial > blocks * 4
        and not torch.are_deterministic_algorithms_enabled()
    )


@decision
def _runs_at_once(gpu: GPU, blocks: int) -> bool:
    """Whether so many blocks of threads are fewer than the GPU runs at once."""
    return blocks < gpu.multi_processor_count * _MOST_BLOCKS_PER_PROCESSOR


def bag_inputs(launch: Launch) -> None:
    """``_embedding_bag``, before its results: contiguous indices and offsets."""
    launch.contiguous(*launch.args[1:3])


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
