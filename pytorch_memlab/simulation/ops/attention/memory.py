"""Fused attention: split keys' accumulators, sums of gradients, accumulated gradients."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final

import torch

from ...hardware.decisions import decision
from ..convolution.cudnn_memory import CUDNN_WORKSPACES
from ..memory_model import Basis, Entry, nothing
from .backward_tiles import tile_of, workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ...hardware.gpu import GPU
    from ..op_call import Launch

_FLOAT: Final = 4
_UINT64: Final = 8
_ROWS: Final = 128
"""Queries that flash attention's accumulators are a multiple of."""

_MOST_SPLITS: Final = 128
_MOST_IN_REGISTERS: Final = 128


def splits_of(blocks: int, processors: int, key_blocks: int) -> int:
    """Parts in which flash attention shares out the keys (``num_splits_heuristic``).

    Args:
        blocks: of queries, in all batches and heads.
        processors: twice the GPU's multiprocessors, as a block has 128 threads.
        key_blocks: of keys.

    Returns:
        the fewest parts that use the GPU nearly as well as any number does.
    """
    if blocks >= 0.8 * processors:
        return 1
    most = min(_MOST_SPLITS, processors, key_blocks)
    use = {
        count: blocks * count / processors / ceil(blocks * count / processors)
        for count in range(1, most + 1)
        if count == 1 or ceil(key_blocks / count) != ceil(key_blocks / (count - 1))
    }
    best = max(use.values(), default=0.0)
    return next((count for count, good in use.items() if good >= 0.85 * best), 1)


def _make_flash(launch: Launch) -> None:
    result, sums, random, unused = (launch.result[index] for index in (0, 1, 6, 7))
    dropout = launch.argument(3, "dropout_p", 0.0)
    launch.made(result, sums)
    if not dropout and result.shape[0]:
        _split_keys(launch)
    if random.dtype != torch.uint64:
        return
    if not dropout:
        launch.made(random, unused)
        return
    # The kernel makes the random state twice, and drops the first.
    first = launch.borrow(2 * _UINT64)
    launch.made(unused, random)
    launch.give_back(first)


def _split_keys(launch: Launch) -> None:
    query, key = launch.args[:2]
    batch, heads, queries, size = query.shape
    if queries == 1 and heads > key.shape[1]:
        queries, heads = heads // key.shape[1], key.shape[1]
    rows = 256 if size <= 64 else 128 if size <= 128 else 64
    blocks = batch * heads * ceil(queries / 64)
    splits = _splits(launch.gpu.model, blocks, ceil(key.shape[2] / rows))
    if splits > 1:
        sums = splits * batch * heads * queries * _FLOAT
        launch.borrow(sums)
        launch.borrow(sums * _rounded_head(size))


@decision
def _splits(gpu: GPU, blocks: int, parts: int) -> int:
    return splits_of(blocks, 2 * gpu.multi_processor_count, parts)


def _flash_gradients(launch: Launch) -> None:
    query, key = launch.args[1:3]
    batch, heads, queries, size = query.shape
    if not batch:
        return
    rows = batch * heads * (queries + -queries % _ROWS)
    parts = 1
    if _is_deterministic():
        parts = ceil(launch.gpu.model.multi_processor_count / (batch * heads))
    launch.borrow(rows * _FLOAT)
    launch.borrow(parts * rows * _rounded_head(size) * _FLOAT)
    if key.shape[1] != heads:
        for _ in range(2):
            launch.borrow(batch * key.shape[2] * heads * size * query.element_size())


def _rounded_head(size: int) -> int:
    return size + -size % (32 if size <= 128 else 64)


def _contiguous(*positions: int) -> Callable[[Launch], None]:
    """Copies of what does not have its heads behind its sequence in memory.

    Args:
        positions: of the op's arguments.

    Returns:
        ``prepare`` of an entry.
    """

    def prepare(launch: Launch) -> None:
        launch.contiguous(*(launch.args[position].transpose(1, 2) for position in positions))

    return prepare


def _make_efficient(launch: Launch) -> None:
    result, sums = launch.result[:2]
    launch.made(result, sums)
    query = launch.args[0]
    size = max(query.shape[-1], result.shape[-1])
    if query.dtype != torch.float32 and size > _MOST_IN_REGISTERS:
        launch.borrow(result.numel() * _FLOAT)


def _efficient_gradients(launch: Launch) -> None:
    _, query, key, value = launch.args[:4]
    batch, heads, queries, size = query.shape
    head = size, value.shape[-1]
    has_dropout = bool(launch.args[9])
    tile = tile_of(launch.gpu.model, query.dtype, max(head), has_dropout)
    if tile.delta:
        launch.borrow(batch * heads * queries * _FLOAT)
    else:
        _sum_products(launch)
    sizes = batch, heads, queries, key.shape[2]
    nbytes = workspace(tile, sizes, head, split=not _is_deterministic())
    if nbytes:
        launch.borrow(nbytes)


def _sum_products(launch: Launch) -> None:
    """Result times gradient in float32, summed over the head dimension, heads before queries."""
    result = launch.args[5]
    batch, heads, queries, _ = result.shape
    copies = 0 if result.dtype == torch.float32 else 2
    wide = [launch.borrow(result.numel() * _FLOAT) for _ in range(copies)]
    product = launch.borrow(result.numel() * _FLOAT)
    sums = launch.borrow(batch * heads * queries * _FLOAT)
    if heads > 1 and queries > 1:
        launch.borrow(batch * heads * queries * _FLOAT)
        launch.give_back(sums)
    for placement in (product, *wide):
        launch.give_back(placement)


def _make_cudnn(launch: Launch) -> None:
    result = launch.result
    launch.made(result[6], result[7], result[0], result[1])
    launch.unknown = CUDNN_WORKSPACES


def _prepare_cudnn_gradients(launch: Launch) -> None:
    gradient = launch.args[0]
    if gradient.stride(-1) != 1:
        launch.copy(gradient)


def _cudnn_gradients(launch: Launch) -> None:
    """What cuDNN's frontend asks for; what its engine asks for besides is not known."""
    query = launch.args[1]
    batch, heads, queries, size = query.shape
    launch.borrow(batch * heads * queries * (size + 1) * _FLOAT)
    launch.unknown = CUDNN_WORKSPACES


def _is_deterministic() -> bool:
    return torch.are_deterministic_algorithms_enabled() and (
        not torch.is_deterministic_algorithms_warn_only_enabled()
    )


_FLASH: Final = "aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp"
_EFFICIENT: Final = "aten/src/ATen/native/transformers/cuda/attention.cu"
_EFFICIENT_BACKWARD: Final = "aten/src/ATen/native/transformers/cuda/attention_backward.cu"
_CUDNN: Final = "aten/src/ATen/native/cudnn/MHA.cpp"

ENTRIES: Final[Mapping[str, Entry]] = {
    "aten::_scaled_dot_product_flash_attention": Entry(
        nothing, _FLASH, Basis.SOURCE, make=_make_flash
    ),
    "aten::_scaled_dot_product_flash_attention_backward": Entry(
        _flash_gradients, _FLASH, Basis.SOURCE, prepare=_contiguous(0, 4)
    ),
    "aten::_scaled_dot_product_efficient_attention": Entry(
        nothing, _EFFICIENT, Basis.SOURCE, make=_make_efficient
    ),
    "aten::_scaled_dot_product_efficient_attention_backward": Entry(
        _efficient_gradients, _EFFICIENT_BACKWARD, Basis.SOURCE, prepare=_contiguous(0)
    ),
    "aten::_scaled_dot_product_cudnn_attention": Entry(
        nothing, _CUDNN, Basis.ESTIMATE, make=_make_cudnn
    ),
    "aten::_scaled_dot_product_cudnn_attention_backward": Entry(
        _cudnn_gradients, _CUDNN, Basis.ESTIMATE, prepare=_prepare_cudnn_gradients
    ),
}
